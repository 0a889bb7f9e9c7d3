"""Every exception agentapp raises on purpose.

    AgentappError
    ├── SettingError            a setting has a bad value
    ├── StartError              the server cannot start: port, directory, schema
    ├── IsolationError
    │   ├── MissingId           a scope was made without one of its ids
    │   ├── NotBound            nothing is bound where a scope is needed
    │   └── ForeignScope        an agent was asked to work for a scope that is not its own
    ├── Refused                 the request is turned down; nothing was spent
    │   ├── BadRequest
    │   │   ├── InvalidMessage
    │   │   └── MessageTooLong
    │   ├── WrongPassword
    │   ├── LoginRequired
    │   ├── NotFound            absent and somebody else's alike
    │   ├── TurnInProgress
    │   ├── IdempotencyMismatch
    │   └── GuardrailRefused    one of the limits says no: which, how much is used, when to come back
    │       ├── BreakerOpen
    │       ├── RateLimited
    │       ├── BudgetExhausted
    │       └── Busy
    ├── TurnFailed              the turn started and came to no answer
    │   ├── OutOfSteps
    │   ├── OutOfTokens
    │   ├── Declined            the model would rather not answer this
    │   ├── TurnTimeout         the turn as a whole took too long
    │   ├── TurnStopped         its user asked for it
    │   ├── TurnInterrupted     the server stopped, or the turn was taken from this worker
    │   └── ProviderError
    │       ├── ProviderFailed
    │       │   ├── ProviderRejected    asking again will not help: key, model, request
    │       │   ├── ProviderBusy        429, 500, 529 and the like
    │       │   └── ProviderGarbled     the stream was cut or made no sense
    │       └── ProviderTimeout
    └── StorageUnavailable

A ``code`` is what scripts see; which HTTP status belongs to it is decided in ``web.problems`` alone.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Blame = Literal["turn", "provider", "nobody"]


class AgentappError(Exception):
    """The root. Its text is a sentence that may be shown to the person who caused it."""

    code: ClassVar[str] = "internal"


class SettingError(AgentappError):
    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"{variable}: {problem}")
        self.variable = variable


class StartError(AgentappError):
    pass


class IsolationError(AgentappError):
    pass


class MissingId(IsolationError):
    def __init__(self, name: str, value: object) -> None:
        super().__init__(f"a scope needs a {name}: a non-empty string, not {value!r}")
        self.name = name


class NotBound(IsolationError):
    def __init__(self) -> None:
        super().__init__(
            "No scope is bound here. Inside a request one is bound by itself; in a thread, task or "
            "generator of your own, wrap the work in binder.bound(scope), carried(scope, job) or "
            "streamed(scope, items)."
        )


class ForeignScope(IsolationError):
    def __init__(self, agent: str, own: object, asked: object) -> None:
        super().__init__(f"agent {agent!r} was made for {own} and will not work for {asked}")
        self.agent, self.own, self.asked = agent, own, asked


class Refused(AgentappError):
    pass


class BadRequest(Refused):
    code = "bad-request"


class InvalidMessage(BadRequest):
    code = "invalid-message"


class MessageTooLong(BadRequest):
    code = "message-too-long"


class WrongPassword(Refused):
    code = "wrong-password"


class LoginRequired(Refused):
    code = "login-required"


class NotFound(Refused):
    code = "not-found"


class TurnInProgress(Refused):
    code = "turn-in-progress"

    def __init__(self, turn_id: str) -> None:
        super().__init__(
            "This chat is still answering the message before. Wait for it to end, then send again."
        )
        self.turn_id = turn_id


class IdempotencyMismatch(Refused):
    code = "idempotency-mismatch"


class GuardrailRefused(Refused):
    """``scope`` is set by whoever asked: session, user, tenant, provider or server.

    To refuse has to be cheap, so the text is only made when somebody reads it.
    """

    __slots__ = ("limit", "retry_after", "used")
    scope = ""

    def __init__(self, *, limit: int, used: int, retry_after: float) -> None:
        self.limit, self.used, self.retry_after = limit, used, retry_after

    def __str__(self) -> str:
        if self.args:  # somebody has put it into words already
            return super().__str__()
        return f"{self.code}: {self.used} of {self.limit}; try again in {self.retry_after:.0f} s"


class BreakerOpen(GuardrailRefused):
    """``limit`` and ``used`` are failures in a row: how many open it, and how many there were."""

    code = "breaker-open"


class RateLimited(GuardrailRefused):
    code = "rate-limited"

    def __init__(self, *, limit: int, used: int, retry_after: float, seconds: float) -> None:
        super().__init__(limit=limit, used=used, retry_after=retry_after)
        self.seconds = seconds


class BudgetExhausted(GuardrailRefused):
    """``used`` may be less than ``limit``: then the rest is reserved by turns that are still running."""

    code = "budget-exhausted"


class Busy(GuardrailRefused):
    code = "busy"


class TurnFailed(AgentappError):
    """``usage`` is what the failed call had already cost, as far as it is known.

    ``blame`` says what the failure is held against: the ``turn`` (its chat and its user), the
    ``provider`` too, or ``nobody``.
    """

    code = "turn-failed"
    blame: Blame = "turn"

    def __init__(self, message: str, *, usage: Any = None) -> None:
        super().__init__(message)
        self.usage = usage


class OutOfSteps(TurnFailed):
    code = "out-of-steps"


class OutOfTokens(TurnFailed):
    code = "budget-exhausted"
    blame: Blame = "nobody"


class Declined(TurnFailed):
    code = "provider-failed"
    blame: Blame = "nobody"


class TurnTimeout(TurnFailed):
    code = "provider-timeout"
    blame: Blame = "provider"


class TurnStopped(TurnFailed):
    """Its code is never told: a turn that was stopped says so in its status, and has no error."""

    blame: Blame = "nobody"

    def __init__(self, message: str = "Stopped.", *, usage: Any = None) -> None:
        super().__init__(message, usage=usage)


class TurnInterrupted(TurnFailed):
    code = "turn-interrupted"
    blame: Blame = "nobody"

    def __init__(self, message: str = "The server restarted while answering.", *, usage: Any = None) -> None:
        super().__init__(message, usage=usage)


class ProviderError(TurnFailed):
    """``said_something`` is set by whoever streams: part of the answer had been shown already."""

    code = "provider-failed"
    blame: Blame = "provider"

    def __init__(self, message: str, *, usage: Any = None, retry_after: float | None = None) -> None:
        super().__init__(message, usage=usage)
        self.retry_after = retry_after
        self.said_something = False


class ProviderFailed(ProviderError):
    pass


class ProviderRejected(ProviderFailed):
    pass


class ProviderBusy(ProviderFailed):
    pass


class ProviderGarbled(ProviderFailed):
    pass


class ProviderTimeout(ProviderError):
    code = "provider-timeout"


class StorageUnavailable(AgentappError):
    code = "storage-unavailable"
