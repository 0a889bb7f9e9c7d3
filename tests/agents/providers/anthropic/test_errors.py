"""Every error of the SDK and of the network becomes one of ours, with the right one to blame."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import anthropic
import httpx2
import pytest

from agentapp.agents.providers.anthropic.errors import SENTENCES, retry_after_of, translate_error
from agentapp.errors import (
    ProviderBusy,
    ProviderError,
    ProviderGarbled,
    ProviderMisconfigured,
    ProviderRejected,
    ProviderTimeout,
)
from agentapp.events import Usage
from tests.agents.providers.anthropic.asking import KEY, call
from tests.support.messages_api import MessagesApi, Script

MARK = "the-private-words-of-ann"

REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1/messages", headers={"x-api-key": KEY})
STATUSES = {
    **dict.fromkeys((400, 409, 413, 418, 422, 431), ProviderRejected),
    **dict.fromkeys((307, 401, 402, 403, 404), ProviderMisconfigured),
    408: ProviderTimeout,
    **dict.fromkeys((429, 500, 502, 503, 504, 529), ProviderBusy),
}


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_has_its_error_and_is_asked_once(ask: Any, api: MessagesApi, status: int) -> None:
    api.respond_with(Script(status=status))
    with pytest.raises(ProviderError) as caught:
        ask(call())
    assert type(caught.value) is STATUSES[status]
    assert (caught.value.usage, caught.value.retry_after) == (Usage(model_calls=1), None)
    assert not caught.value.said_something
    assert len(api.requests) == 1


BLAMED = {
    **dict.fromkeys((400, 413), "turn"),
    **dict.fromkeys((408, 429, 500, 503, 529), "provider"),
    **dict.fromkeys((401, 402, 403, 404), "nobody"),
}


@pytest.mark.parametrize("status", BLAMED)
def test_only_what_is_wrong_with_the_request_itself_is_held_against_its_chat_alone(
    ask: Any, api: MessagesApi, status: int
) -> None:
    """A message that is too long fails for the one who wrote it. A wrong key or model is the operator's."""
    api.respond_with(Script(status=status))
    with pytest.raises(ProviderError) as caught:
        ask(call())
    assert caught.value.blame == BLAMED[status]


@pytest.mark.parametrize(
    ("fault", "blame"),
    [
        ("error-event:invalid_request_error", "turn"),
        ("error-event:request_too_large", "turn"),
        ("error-event:authentication_error", "nobody"),
        ("error-event:overloaded_error", "provider"),
        ("cut:500", "provider"),
    ],
)
def test_a_fault_in_the_stream_is_held_against_the_one_whose_it_is(
    ask: Any, api: MessagesApi, fault: str, blame: str
) -> None:
    api.respond_with(Script(("Hello ", "world"), fault=fault))
    with pytest.raises(ProviderError) as caught:
        ask(call())
    assert caught.value.blame == blame


def test_an_account_without_credit_is_the_operators_trouble(ask: Any, api: MessagesApi) -> None:
    api.respond_with(Script(status=400, message="Your credit balance is too low to access the API."))
    with pytest.raises(ProviderMisconfigured) as caught:
        ask(call())
    assert caught.value.blame == "nobody"


def test_blaming_one_request_blames_no_other(ask: Any, api: MessagesApi) -> None:
    api.respond_with([Script(status=400), Script(status=401)])
    for blame in ("turn", "nobody"):
        with pytest.raises(ProviderRejected) as caught:
            ask(call())
        assert caught.value.blame == blame
    assert ProviderRejected.blame == "provider"


@pytest.mark.parametrize("header", ["3", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_retry_after_is_read_from_the_answer(ask: Any, api: MessagesApi, header: str) -> None:
    api.respond_with(Script(status=429, retry_after=header))
    with pytest.raises(ProviderBusy) as caught:
        ask(call())
    assert caught.value.retry_after == 3 if header == "3" else caught.value.retry_after > 1e6


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0.25", 0.25),
        ("-5", 0),
        (formatdate(1_000_030, usegmt=True), 30),
        (formatdate(999_000, usegmt=True), 0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("99 Foo 9999999999 99:99", None),
    ],
)
def test_retry_after_may_be_seconds_or_a_date(header: str, seconds: float | None) -> None:
    response = httpx2.Response(529, headers={"retry-after": header}, request=REQUEST)
    exc = anthropic.APIStatusError("busy", response=response, body=None)
    assert retry_after_of(exc, now=1_000_000) == seconds
    assert retry_after_of(ValueError(), now=1_000_000) is None


SDK = {
    "AnthropicError": ProviderGarbled,
    "APIError": ProviderGarbled,
    "APIResponseValidationError": ProviderGarbled,
    "APIWebhookValidationError": ProviderGarbled,
    "RetryableError": ProviderGarbled,
    "WorkloadIdentityError": ProviderGarbled,
    "CredentialsError": ProviderMisconfigured,
    "IdentityTokenFileError": ProviderMisconfigured,
    "APIConnectionError": ProviderBusy,
    "APITimeoutError": ProviderTimeout,
    "RequestTimeoutError": ProviderTimeout,
    "APIStatusError": ProviderRejected,
    "AuthenticationError": ProviderMisconfigured,
    "BadRequestError": ProviderRejected,
    "CMEKKeyDisabledError": ProviderRejected,
    "CMEKKeyNetworkBlockedError": ProviderRejected,
    "ClaudeCodeKeyCreatorNotMemberError": ProviderRejected,
    "ClaudeCodeVersionTooOldError": ProviderRejected,
    "ClientClosedRequestError": ProviderRejected,
    "ConflictError": ProviderRejected,
    "ContentTooLargeError": ProviderRejected,
    "NotFoundError": ProviderMisconfigured,
    "OrganizationOnHoldError": ProviderRejected,
    "OrganizationTypeNotSupportedError": ProviderRejected,
    "PermissionDeniedError": ProviderMisconfigured,
    "PreconditionFailedError": ProviderRejected,
    "RequestBodyEncodingInvalidError": ProviderRejected,
    "RequestBodyEncodingUnsupportedError": ProviderRejected,
    "RequestBodyTooLargeAfterDecodingError": ProviderRejected,
    "RequestHeaderFieldsTooLargeError": ProviderRejected,
    "SandboxEgressRestrictedError": ProviderMisconfigured,
    "UnprocessableEntityError": ProviderRejected,
    "CMEKContextUnavailableError": ProviderBusy,
    "CMEKKeyUnreachableError": ProviderBusy,
    "EnforcedSpendLimitReachedError": ProviderBusy,
    "GatewayTimeoutError": ProviderBusy,
    "HTTPNotImplementedError": ProviderBusy,
    "InternalServerError": ProviderBusy,
    "OverloadedError": ProviderBusy,
    "RampLimitExceededError": ProviderBusy,
    "RateLimitError": ProviderBusy,
    "ServiceUnavailableError": ProviderBusy,
}
HTTPX = {
    **dict.fromkeys(
        ("TimeoutException", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"), ProviderTimeout
    ),
    **dict.fromkeys(("ConnectError", "ProxyError"), ProviderBusy),
    **dict.fromkeys(("LocalProtocolError", "UnsupportedProtocol", "InvalidURL"), ProviderMisconfigured),
    **dict.fromkeys(
        (
            "HTTPError",
            "RequestError",
            "TransportError",
            "NetworkError",
            "ReadError",
            "WriteError",
            "CloseError",
            "ProtocolError",
            "RemoteProtocolError",
            "DecodingError",
            "TooManyRedirects",
            "HTTPStatusError",
            "CookieConflict",
            "SSEError",
            "StreamError",
            "StreamConsumed",
            "StreamClosed",
            "ResponseNotRead",
            "RequestNotRead",
        ),
        ProviderGarbled,
    ),
}


def below(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


def exceptions_of(library: Any) -> set[type[Exception]]:
    """All that it shows, and all that it keeps below them."""
    shown = [value for value in vars(library).values() if inspect.isclass(value)]
    found = {kind for value in shown if issubclass(value, Exception) for kind in (value, *below(value))}
    return {c for c in found if c.__module__.startswith(library.__name__) and not issubclass(c, Warning)}


def status_of(kind: type) -> int:
    return getattr(kind, "status_code", 500 if issubclass(kind, anthropic.InternalServerError) else 418)


def built(kind: type[Exception]) -> Exception:
    """An instance, whatever its constructor wants."""
    known = {
        "message": "m",
        "request": REQUEST,
        "response": httpx2.Response(status_of(kind), request=REQUEST),
        "body": None,
    }
    if kind.__init__ is Exception.__init__:
        return kind("m")
    _, *wanted = inspect.signature(kind.__init__).parameters.values()
    needed = [
        p.name for p in wanted if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return kind(**dict.fromkeys(needed, "m") | {p.name: known[p.name] for p in wanted if p.name in known})


def class_of_status(status: int) -> type:
    if status == 408:
        return ProviderTimeout
    if status in (401, 402, 403, 404):
        return ProviderMisconfigured
    return ProviderBusy if status == 429 or status >= 500 else ProviderRejected


def class_of(kind: type, known: dict[str, type]) -> type:
    """By its name; one that a later release adds, by its status or its nearest base that is known."""
    if kind.__name__ not in known and issubclass(kind, anthropic.APIStatusError):
        return class_of_status(status_of(kind))
    return next((known[base.__name__] for base in kind.__mro__ if base.__name__ in known), ProviderGarbled)


@pytest.mark.parametrize(
    ("library", "known"), [(anthropic, SDK), (httpx2, HTTPX)], ids=["anthropic", "httpx2"]
)
def test_every_foreign_exception_has_its_own_of_ours(library: Any, known: dict[str, type]) -> None:
    kinds = exceptions_of(library)
    assert len(known.keys() & {kind.__name__ for kind in kinds}) > len(known) / 2  # it looked where they are
    assert {kind: type(translate_error(built(kind), None, Usage())) for kind in kinds} == {
        kind: class_of(kind, known) for kind in kinds
    }


def test_error_classes_of_a_status_follow_the_status() -> None:
    kinds = [kind for kind in below(anthropic.APIStatusError) if kind is not anthropic.InternalServerError]
    assert {anthropic.BadRequestError, anthropic.RateLimitError} <= set(kinds)
    for kind in kinds:
        assert type(translate_error(built(kind), None, Usage())) is class_of_status(status_of(kind))


@pytest.mark.parametrize(
    ("base", "status", "expected"),
    [
        (anthropic.AnthropicError, None, ProviderGarbled),
        (anthropic.CredentialsError, None, ProviderMisconfigured),
        (anthropic.APIConnectionError, None, ProviderBusy),
        (anthropic.APITimeoutError, None, ProviderTimeout),
        (anthropic.APIStatusError, 451, ProviderRejected),
        (anthropic.APIStatusError, 408, ProviderTimeout),
        (anthropic.APIStatusError, 598, ProviderBusy),
        (anthropic.BadRequestError, None, ProviderRejected),
        (anthropic.RateLimitError, None, ProviderBusy),
        (anthropic.InternalServerError, None, ProviderBusy),
        (httpx2.HTTPError, None, ProviderGarbled),
        (httpx2.InvalidURL, None, ProviderMisconfigured),
        (httpx2.ConnectError, None, ProviderBusy),
        (httpx2.ReadTimeout, None, ProviderTimeout),
    ],
)
def test_an_exception_of_a_later_release_counts_as_what_it_is_a_kind_of(
    base: type[Exception], status: int | None, expected: type
) -> None:
    own = {} if status is None else {"status_code": status}
    tomorrows = type("OfTomorrow", (base,), own)
    for kind in (tomorrows, type("OfNextYear", (tomorrows,), {})):
        assert type(translate_error(built(kind), None, Usage())) is expected
        assert class_of(kind, {**SDK, **HTTPX}) is expected  # and no other is asked for above


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (TimeoutError(), ProviderTimeout),
        (json.JSONDecodeError("bad", "doc", 0), ProviderGarbled),
        (KeyError("type"), ProviderGarbled),
        (RecursionError(), ProviderGarbled),
        (ExceptionGroup("several", [ValueError()]), ProviderGarbled),
        (OSError(28, "No space left on device"), ProviderGarbled),
        (type("Unheard", (Exception,), {})(), ProviderGarbled),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_any_other_exception_is_ours_too(exc: Exception, expected: type) -> None:
    assert type(translate_error(exc, None, Usage(7, 0, 1))) is expected


@pytest.mark.parametrize(
    ("cause", "expected", "calls"),
    [
        (httpx2.ConnectError("refused"), ProviderBusy, 0),
        (httpx2.RemoteProtocolError("no response"), ProviderBusy, 1),
        (httpx2.LocalProtocolError("bad header"), ProviderMisconfigured, 0),
        (httpx2.UnsupportedProtocol("no scheme"), ProviderMisconfigured, 0),
    ],
)
def test_what_stopped_a_connection_decides(cause: Exception, expected: type, calls: int) -> None:
    exc = anthropic.APIConnectionError(request=REQUEST)
    exc.__cause__ = cause
    error = translate_error(exc, None, Usage(7, 0, 1))
    assert (type(error), error.usage) == (expected, Usage(7, 0, 1) if calls else Usage())


@pytest.mark.parametrize(
    "script",
    [
        Script(status=401, message=f"invalid x-api-key {KEY}"),
        Script(status=500, message=KEY),
        Script(("x",), fault=f"error-event:{KEY}"),
        Script(("x",), fault="cut:300"),
    ],
    ids=["401", "500", "event", "cut"],
)
def test_the_key_is_in_no_message_and_no_log(
    ask: Any, api: MessagesApi, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api.respond_with(script)
    with pytest.raises(ProviderError) as caught:
        ask(call())
    logging.getLogger("outside").error("the turn failed", exc_info=caught.value)
    assert str(caught.value) in SENTENCES.values()
    assert any(
        r.levelno == logging.WARNING and r.name == "agentapp.agents.providers.anthropic.errors"
        for r in caplog.records
    )
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (Script(status=400, message=MARK), (400, "invalid_request_error", "BadRequestError at ")),
        (Script(status=500, message=MARK), (500, "api_error", "InternalServerError at ")),
        (Script(("x",), fault=f"error-event:{MARK}"), (None, None, "ErrorEvent at ")),
    ],
    ids=["400", "500", "event"],
)
def test_the_log_has_the_kind_of_a_failure_and_not_the_words_of_the_provider(
    ask: Any, api: MessagesApi, script: Script, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The provider may repeat the message that it does not accept."""
    caplog.set_level(logging.INFO)
    api.respond_with(script)
    with pytest.raises(ProviderError):
        ask(call(MARK))
    (line,) = [vars(record) for record in caplog.records if record.name.startswith("agentapp")]
    assert (line["provider_status"], line["provider_error"]) == told[:2]
    assert line["message"].startswith(f"model call failed: {told[2]}")
    assert MARK not in caplog.text
    assert MARK not in repr(line)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_the_operator_is_told_what_is_set_up_wrongly_and_not_the_key(
    ask: Any, api: MessagesApi, status: int
) -> None:
    api.respond_with(Script(status=status, message=f"{MARK} {KEY}"))
    with pytest.raises(ProviderMisconfigured) as caught:
        ask(call())
    assert f"{status}, " in caught.value.cause
    assert call().model in caught.value.cause
    assert MARK not in caught.value.cause
    assert KEY not in caught.value.cause
    assert not caught.value.can_retry


@pytest.mark.parametrize("id", ["x" * 200, f"{MARK} in words", ""])
def test_an_id_of_the_providers_that_looks_like_none_is_not_logged(id: str) -> None:
    response = httpx2.Response(500, headers={"request-id": id}, request=REQUEST)
    error = anthropic.APIStatusError("busy", response=response, body=None)
    assert error.request_id == id
    assert translate_error(error, None, Usage()).provider_request_id is None
