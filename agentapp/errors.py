"""Every exception agentapp raises on purpose.

    AgentappError
    ├── SettingError            a setting has a bad value
    ├── StartError              the server cannot start: port, directory, schema
    ├── IsolationError
    │   ├── MissingId           a scope was made without one of its ids
    │   ├── NotBound            nothing is bound where a scope is needed
    │   └── IsolationViolated   a check of isolation has failed; what it found is not used
    │       ├── ForeignScope        an agent was asked to work for a scope that is not its own
    │       ├── ForeignHistory      a chat's earlier messages are not all of that chat
    │       ├── ForeignToolResult   a tool's result is of another request
    │       ├── ForeignEvents       a turn's events are of another chat
    │       └── AgentsReused        the agents of one turn were given to another
    ├── Refused                 the request is not carried out; nothing was spent
    │   ├── BadRequest
    │   │   ├── InvalidMessage
    │   │   ├── MessageTooLong
    │   │   └── UnknownHost     the request asks for a name that is not this server's
    │   ├── ForeignOrigin       a page of another site sent the request
    │   ├── WrongPassword
    │   ├── LoginRequired
    │   ├── Forbidden           for admins or operators, or only after the password was changed
    │   ├── NotFound            it does not exist, or it is somebody else's
    │   ├── TurnInProgress
    │   ├── IdempotencyMismatch
    │   └── GuardrailRefused    a limit is reached: which one, how much is used, when to come back
    │       ├── BreakerOpen
    │       ├── RateLimited
    │       ├── BudgetExhausted
    │       ├── Busy
    │       └── StorageFull     the user or the tenant keeps as much as it may
    ├── TurnFailed              the turn started and ended without an answer
    │   ├── OutOfSteps
    │   ├── OutOfTokens
    │   ├── EmptyAnswer
    │   ├── Declined            the model declined to answer
    │   ├── TurnTimeout         the turn as a whole took too long
    │   ├── TurnStopped         its user stopped it
    │   ├── TurnInterrupted     the server stopped, or the turn was taken from this worker
    │   └── ProviderError
    │       ├── ProviderFailed
    │       │   ├── ProviderRejected    asking again will not help
    │       │   │   └── ProviderMisconfigured   nor will another request: a wrong key, model or address
    │       │   ├── ProviderBusy        429, 500, 529 and the like
    │       │   └── ProviderGarbled     the stream broke off or could not be understood
    │       └── ProviderTimeout
    └── StorageUnavailable
        ├── StatementTimeout    the database took too long over one statement
        ├── RedisAway           what it is asked for has to be found elsewhere, or is not done
        └── DiskFull            there is no room for more, whoever asks

A ``code`` is what scripts see. The HTTP status for each code is decided in ``web.problems`` and nowhere else.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Blame = Literal["turn", "provider", "nobody"]


class AgentappError(Exception):
    """The root. Its text is a sentence that may be shown to the person whose request failed."""

    code: ClassVar[str] = "internal"


class SettingError(AgentappError):
    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"{variable}: {problem}")
        self.variable = variable


class StartError(AgentappError): ...


class IsolationError(AgentappError): ...


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


class IsolationViolated(IsolationError):
    """``kind`` is for metrics and alerts; it was found in the request ``request_id``, of ``tenant_id``."""

    kind: ClassVar[str]
    request_id = tenant_id = ""

    def _found_in(self, scope: object) -> None:
        self.request_id, self.tenant_id = (getattr(scope, name, "") for name in ("request_id", "tenant_id"))


class ForeignScope(IsolationViolated):
    kind = "foreign-scope"

    def __init__(self, agent: str, own: object, asked: object) -> None:
        super().__init__(f"agent {agent!r} was made for {own} and will not work for {asked}")
        self.agent, self.own, self.asked = agent, own, asked
        self._found_in(asked)


class _Foreign(IsolationViolated):
    def __init__(self, own: object, found: object) -> None:
        super().__init__(f"{self.kind}: {found} where only those of {own} belong")
        self.own, self.found = own, found
        self._found_in(own)


class ForeignHistory(_Foreign):
    kind = "foreign-history"


class ForeignToolResult(_Foreign):
    kind = "foreign-tool-result"


class ForeignEvents(_Foreign):
    kind = "foreign-event"


class AgentsReused(IsolationViolated):
    kind = "instance-reused"

    def __init__(self, made_for: object, given_to: object) -> None:
        super().__init__(f"agents that were made for {made_for} were given to another turn")
        self._found_in(given_to)


class Refused(AgentappError): ...


class BadRequest(Refused):
    code = "bad-request"


class InvalidMessage(BadRequest):
    code = "invalid-message"


class MessageTooLong(BadRequest):
    code = "message-too-long"


class UnknownHost(BadRequest): ...


class ForeignOrigin(Refused):
    code = "csrf"


class WrongPassword(Refused):
    code = "wrong-password"


class LoginRequired(Refused):
    code = "login-required"


class Forbidden(Refused):
    code = "forbidden"


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
    """``scope`` says whose limit it was, for example session, user, tenant, provider or server. It is empty
    until ``guardrails.wording.stamp_refusal`` sets it and writes the sentence for people. Before that, the
    text is made only when it is read: refusals are frequent and have to be cheap.
    """

    __slots__ = ("limit", "retry_after", "used")
    scope = ""

    def __init__(self, *, limit: int, used: int, retry_after: float) -> None:
        self.limit, self.used, self.retry_after = limit, used, retry_after

    def __str__(self) -> str:
        if self.args:  # the sentence for people has been written
            return super().__str__()
        return f"{self.code}: {self.used} of {self.limit}; try again in {self.retry_after:.0f} s"


class BreakerOpen(GuardrailRefused):
    """``limit`` is how many failures in a row open the breaker, ``used`` how many there were."""

    code = "breaker-open"


class RateLimited(GuardrailRefused):
    code = "rate-limited"

    def __init__(self, *, limit: int, used: int, retry_after: float, seconds: float) -> None:
        super().__init__(limit=limit, used=used, retry_after=retry_after)
        self.seconds = seconds


class BudgetExhausted(GuardrailRefused):
    """If ``used`` is less than ``limit``, the rest is reserved by turns that are still running."""

    code = "budget-exhausted"


class Busy(GuardrailRefused):
    code = "busy"


class StorageFull(GuardrailRefused):
    """In bytes. Waiting does not help."""

    code = "storage-full"

    def __init__(self, *, limit: int, used: int) -> None:
        super().__init__(limit=limit, used=used, retry_after=0.0)


class TurnFailed(AgentappError):
    """``usage`` is what the failed call had used before it failed, as far as it is known. ``blame`` says for
    whom the failure counts: for the ``turn``, which means its chat and its user; for the ``provider``, which
    means for the turn and the provider too; or for ``nobody``.
    """

    code = "turn-failed"
    blame: Blame = "turn"
    can_retry: ClassVar[bool] = True  # whether a person is offered to try again

    def __init__(self, message: str, *, usage: Any = None) -> None:
        super().__init__(message)
        self.usage = usage


class OutOfSteps(TurnFailed):
    code = "out-of-steps"


class OutOfTokens(TurnFailed):
    code = "budget-exhausted"
    blame: Blame = "nobody"


class EmptyAnswer(TurnFailed):
    """Not the provider's: a person can ask the model to say nothing."""

    code = "provider-failed"


class Declined(TurnFailed):
    code = "provider-failed"
    blame: Blame = "nobody"


class TurnTimeout(TurnFailed):
    """Not the provider's: a long question makes a long answer."""

    code = "provider-timeout"


class TurnStopped(TurnFailed):
    """Its code is never shown: a stopped turn says so in its status and has no error."""

    blame: Blame = "nobody"

    def __init__(self, message: str = "Stopped.", *, usage: Any = None) -> None:
        super().__init__(message, usage=usage)


class TurnInterrupted(TurnFailed):
    code = "turn-interrupted"
    blame: Blame = "nobody"

    def __init__(self, message: str = "The server restarted while answering.", *, usage: Any = None) -> None:
        super().__init__(message, usage=usage)


class ProviderError(TurnFailed):
    """``said_something`` is set by the code that streams, if a part of the answer had been shown already."""

    code = "provider-failed"
    blame: Blame = "provider"
    provider_request_id: str | None = None  # by which the provider finds the call

    def __init__(self, message: str, *, usage: Any = None, retry_after: float | None = None) -> None:
        super().__init__(message, usage=usage)
        self.retry_after = retry_after
        self.said_something = False


class ProviderFailed(ProviderError): ...


class ProviderRejected(ProviderFailed): ...


class ProviderMisconfigured(ProviderRejected):
    blame: Blame = "nobody"
    can_retry = False
    cause = ""  # for the operator, without the key and without words of anybody


class ProviderBusy(ProviderFailed): ...


class ProviderGarbled(ProviderFailed): ...


class ProviderTimeout(ProviderError):
    code = "provider-timeout"


class StorageUnavailable(AgentappError):
    code = "storage-unavailable"


class StatementTimeout(StorageUnavailable):
    code = "storage-timeout"


class RedisAway(StorageUnavailable): ...


class DiskFull(StorageUnavailable):
    """Whoever raises it has written it to the log."""
