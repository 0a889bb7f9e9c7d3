"""A model that says what the test wrote down for it, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from agentapp.agents.provider import ModelCall, Reply, ToolCall
from agentapp.events import Usage
from agentapp.isolation import Scope

Answer = str | Reply | BaseException | Callable[[ModelCall], Any]

SPENT = Usage(10, 5, 1)


def scope(name: str = "a") -> Scope:
    return Scope(request_id=f"r-{name}", tenant_id=f"t-{name}", user_id=f"u-{name}", session_id=f"s-{name}")


def calls(*wanted: tuple[str, Any]) -> Reply:
    """A reply that calls tools: ("name", input) each."""
    return Reply(
        "", tuple(ToolCall(f"call-{n}", name, given) for n, (name, given) in enumerate(wanted)), SPENT
    )


def hands_over(to: str, task: str = "help", **parameters: Any) -> Reply:
    return calls(("hand_over", {"to": to, "task": task, "parameters": parameters}))


def hands_back(summary: str = "not mine") -> Reply:
    return calls(("hand_back", {"summary": summary}))


class Scripted:
    """A `Provider`. Each answer is a text, a `Reply`, an exception, or a function of the call."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self._lock = threading.Lock()
        self.asked: list[ModelCall] = []

    def stream(self, call: ModelCall) -> Iterator[str | Reply]:
        for item in self._items(call):
            if isinstance(item, BaseException):
                raise item
            yield item

    def _items(self, call: ModelCall) -> Iterator[Any]:
        with self._lock:
            self.asked.append(call)
            answer = self._answers.pop(0)
        if callable(answer) and not isinstance(answer, BaseException):
            answer = answer(call)
        if isinstance(answer, str):
            answer = Reply(answer, usage=SPENT)
        if isinstance(answer, Reply):
            words = answer.text.split(" ")
            yield from (word if n == 0 else f" {word}" for n, word in enumerate(words) if answer.text)
            yield answer
        elif isinstance(answer, BaseException):
            yield answer
        else:
            yield from answer


class AsyncScripted(Scripted):
    """The same as an `AsyncProvider`."""

    async def stream(self, call: ModelCall) -> AsyncIterator[str | Reply]:  # type: ignore[override]
        for item in self._items(call):
            if isinstance(item, BaseException):
                raise item
            yield item
