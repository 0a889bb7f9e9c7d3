"""How the end of a tool's call becomes a result that the model can read."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from agentapp.agents.provider import ToolCall, ToolResult
from agentapp.agents.tool import ToolInputError
from agentapp.isolation import RequestScope, Scope
from agentapp.logs import described

MAX_RESULT_CHARS = 20_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Returned:
    """What a tool returned, the scope that was bound where it ran, and when that was."""

    scope: RequestScope
    value: object
    ended_ns: int = field(default_factory=time.time_ns)


def finished_result(
    scope: Scope, call: ToolCall, job: Future[Returned] | asyncio.Future[Returned]
) -> ToolResult:
    """The result of a tool that returned or raised. Whether it is of this ``scope``, the loop checks."""
    error = asyncio.CancelledError() if job.cancelled() else job.exception()
    if error is None:
        returned = job.result()
        result = value_result(call, returned.value)
        return replace(result, scope=returned.scope, ended_ns=returned.ended_ns)
    # Not what it says: a tool that refuses its input quotes it, and the input is what somebody wrote.
    log.warning("tool %s raised %s", call.name, described(error), extra=_ids(scope))
    return exception_result(call, error)


def late_result(scope: Scope, call: ToolCall, seconds: float) -> ToolResult:
    """The result of a tool that did not end in time."""
    log.warning("tool %s did not end within %g s and was given up", call.name, seconds, extra=_ids(scope))
    return error_result(call, f"it did not end within {seconds:g} seconds")


def _ids(scope: Scope) -> dict[str, str]:
    """Not left to the binder: an asyncio server of somebody else's may have a log of its own."""
    return {"request_id": scope.request_id, "session_id": scope.session_id}


def unknown_tool_result(call: ToolCall) -> ToolResult:
    return error_result(call, "there is no such tool")


def value_result(call: ToolCall, value: object) -> ToolResult:
    """What a tool returned, as text. A value that cannot be written as JSON becomes an error."""
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return error_result(call, f"the tool returned a {type(value).__name__}, which cannot be shown")
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) > MAX_RESULT_CHARS:
        text = text[:MAX_RESULT_CHARS] + f"\n[cut: {len(text):,} characters in all]"
    return ToolResult(call.id, text or "(no output)")


def exception_result(call: ToolCall, error: BaseException) -> ToolResult:
    """What the model is told of an exception: the text of a `ToolInputError`, and only the kind of any other.

    The text of an unexpected exception may hold paths or secrets.
    """
    if isinstance(error, ToolInputError):
        return error_result(call, str(error))
    return error_result(call, f"it raised {type(error).__name__}")


def error_result(call: ToolCall, problem: str) -> ToolResult:
    return ToolResult(call.id, f"{call.name} failed: {problem}", is_error=True)
