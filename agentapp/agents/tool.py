"""Tools: plain functions, described by their signature and docstring; and what a tool may use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentapp.agents.provider import ToolCall, ToolSpec
from agentapp.isolation import Scope


class Notes(Protocol):
    """Notes of one chat session, numbered from 1 in the order they were made."""

    def add(self, scope: Scope, text: str) -> int: ...
    def all(self, scope: Scope) -> Sequence[tuple[int, str]]: ...
    def remove(self, scope: Scope, number: int) -> bool: ...


class PastChats(Protocol):
    """The user's own chats. A hit is the chat's title, the day (ISO) and the passage around the match."""

    def search(self, scope: Scope, words: str, limit: int) -> Sequence[tuple[str, str, str]]: ...


class NoStores:
    """Used where an app gives its tools no stores: the model is told of every use as an error."""

    def add(self, scope: Scope, text: str) -> int:
        raise ToolInputError("notes are not kept here")

    def all(self, scope: Scope) -> Sequence[tuple[int, str]]:
        raise ToolInputError("notes are not kept here")

    def remove(self, scope: Scope, number: int) -> bool:
        raise ToolInputError("notes are not kept here")

    def search(self, scope: Scope, words: str, limit: int) -> Sequence[tuple[str, str, str]]:
        raise ToolInputError("past chats cannot be searched here")


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may use: the scope it works for, and stores that take that scope as an argument."""

    scope: Scope
    notes: Notes = field(default_factory=NoStores)
    past_chats: PastChats = field(default_factory=NoStores)
    now: Callable[[], datetime] = _utc_now


class ToolInputError(Exception):
    """Raise it in a tool to tell the model, in one sentence, what was wrong with its input."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with its description. ``fn`` may be sync or async: both drivers run either.

    ``per_turn`` and ``per_session`` are the most calls of it that one turn or one chat may make.
    """

    name: str
    description: str
    fn: Callable[..., Any]
    wants_context: bool
    arguments: type[BaseModel] = field(repr=False)
    spec: ToolSpec = field(repr=False)
    per_turn: int | None = None
    per_session: int | None = None

    def call(self, context: ToolContext, call: ToolCall) -> Any:
        """Check the input and run the function. Async functions give back their coroutine."""
        if not isinstance(call.input, dict):
            raise ToolInputError("the input must be a JSON object")
        try:
            checked = self.arguments.model_validate(call.input)
        except ValidationError as exc:
            raise ToolInputError(_explain(exc)) from exc
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        return self.fn(context, **values) if self.wants_context else self.fn(**values)


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, per_turn: int | None = None, per_session: int | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    per_turn: int | None = None,
    per_session: int | None = None,
) -> Any:
    """Make a `Tool` of a function: its name, docstring and typed parameters are what the model sees.

    A first parameter annotated `ToolContext` is filled in by the app and hidden from the model.
    With ``per_turn`` or ``per_session``, the model is told of every call beyond that many as an error.
    """
    for limit in (per_turn, per_session):
        if limit is not None and limit < 1:
            raise ValueError("a tool that may never be called should not be given to an agent")
    if fn is None:
        return lambda inner: replace(_describe(inner, name), per_turn=per_turn, per_session=per_session)
    return _describe(fn, name)


def _describe(fn: Callable[..., Any], name: str | None) -> Tool:
    description = inspect.getdoc(fn)
    if not description:
        raise TypeError(f"tool {fn.__name__!r} needs a docstring: it is what the model is told about it")
    hints = get_type_hints(fn, include_extras=True)
    parameters = list(inspect.signature(fn).parameters.values())
    wants_context = bool(parameters) and hints.get(parameters[0].name) is ToolContext
    fields: dict[str, Any] = {}
    for parameter in parameters[1:] if wants_context else parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {fn.__name__!r}: parameter {parameter.name!r} must be a plain named one")
        if parameter.name not in hints:
            raise TypeError(f"tool {fn.__name__!r}: parameter {parameter.name!r} needs a type")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    model = create_model(name or fn.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    schema = model.model_json_schema()
    schema.pop("title", None)
    spec = ToolSpec(name or fn.__name__, description, schema)
    return Tool(spec.name, description, fn, wants_context, model, spec)


def _explain(error: ValidationError) -> str:
    parts = [f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}" for e in error.errors()]
    return "; ".join(parts)
