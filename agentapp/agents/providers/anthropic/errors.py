"""Everything that can go wrong with a call of the Messages API, translated into one of our own errors."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any

import anthropic
import httpx2

from agentapp.errors import (
    ProviderBusy,
    ProviderError,
    ProviderGarbled,
    ProviderMisconfigured,
    ProviderRejected,
    ProviderTimeout,
)
from agentapp.events import Usage
from agentapp.logs import described

log = logging.getLogger(__name__)


class UnusableKey(Exception):
    """There is no API key, or it is not one line of plain characters."""


class Unserialisable(Exception):
    """The request cannot be written as JSON: a lone surrogate, NaN, an object of another kind."""


class CutShort(Exception):
    """The stream ended before the answer did."""


class ErrorEvent(Exception):
    """The API reported an error inside a stream that had begun well."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@contextmanager
def writing_request() -> Iterator[None]:
    """Put it around the SDK's call. Of the SDK these errors come only while it writes the request as JSON."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as exc:
        raise Unserialisable from exc


SENTENCES: Mapping[type[ProviderError], str] = MappingProxyType(
    {
        ProviderBusy: "The model provider is busy or cannot be reached right now; please try again in a "
        "moment.",
        ProviderTimeout: "The model provider did not answer in time; please try again.",
        ProviderRejected: "The model provider did not accept the request, and asking again will not help.",
        ProviderMisconfigured: "The model is not set up correctly. Tell your operator.",
        ProviderGarbled: "The answer of the model provider was cut off or could not be read; please try "
        "again.",
    }
)
ERROR_TYPES: Mapping[str, type[ProviderError]] = MappingProxyType(
    {
        "overloaded_error": ProviderBusy,
        "api_error": ProviderBusy,
        "rate_limit_error": ProviderBusy,
        "timeout_error": ProviderBusy,
        "invalid_request_error": ProviderRejected,
        "authentication_error": ProviderMisconfigured,
        "billing_error": ProviderMisconfigured,
        "permission_error": ProviderMisconfigured,
        "not_found_error": ProviderMisconfigured,
        "request_too_large": ProviderRejected,
    }
)
# A wrong key, no money, no permission, no such model or address.
SETUP_STATUSES = (401, 402, 403, 404)
REQUEST_ERROR_TYPES = ("invalid_request_error", "request_too_large")
# Nothing was sent, and nothing will be until the settings or the request are changed.
PERMANENT_ERRORS = (
    UnusableKey,
    Unserialisable,
    anthropic.CredentialsError,
    httpx2.LocalProtocolError,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
)
NOT_SENT_ERRORS = (
    *PERMANENT_ERRORS,
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
)


def translate_error(
    exc: Exception, spent: Usage | None, estimate: Usage, key: str = "", model: str = ""
) -> ProviderError:
    """Our error for any exception at all.

    The log has what the operator needs to ask the provider, and none of the provider's words: they may
    repeat what the person wrote.

    ``spent`` is what the API said that the call has cost so far. If it said nothing, the call has cost what
    was estimated, unless it was not sent, or the API itself says that it failed.
    """
    chain = _chain(exc)
    for link in chain:
        link.args = tuple(_without(key, arg) for arg in link.args)
    ours = _class_for(exc, chain)
    if spent is None:
        sent = not any(isinstance(link, NOT_SENT_ERRORS) for link in chain)
        refused = isinstance(exc, (anthropic.APIStatusError, ErrorEvent))
        spent = Usage(model_calls=int(sent)) if refused or not sent else estimate
    wait = retry_after_of(exc, time.time()) if ours is ProviderBusy else None
    error = ours(SENTENCES[ours], usage=spent, retry_after=wait)
    error.provider_request_id = _request_id(exc)
    if ours is ProviderRejected and _is_about_this_request(exc, chain):
        error.blame = "turn"
    status, kind = getattr(exc, "status_code", None), _known_type(exc)
    if isinstance(error, ProviderMisconfigured):
        said = ", ".join(str(each) for each in (status, kind) if each) or type(exc).__name__
        error.cause = f"The model {model} cannot be used ({said}): check the key, the address and the model."
    told = {
        "provider_status": status,
        "provider_error": kind,
        "provider_request_id": error.provider_request_id,
        "model": model,
    }
    log.warning("model call failed: %s", described(exc), extra=told)
    return error


def _class_for(exc: Exception, chain: Iterable[BaseException]) -> type[ProviderError]:
    """By what it is a kind of, the narrowest first: a name that the SDK adds is known by its base class."""
    if _is_out_of_credit(exc):
        return ProviderMisconfigured
    match exc:
        case anthropic.APITimeoutError() | httpx2.TimeoutException() | TimeoutError():
            return ProviderTimeout
        case ErrorEvent():
            return ERROR_TYPES.get(exc.kind, ProviderGarbled)
        case anthropic.APIStatusError():
            return _class_for_status(exc.response.status_code, str(exc.type))
    if any(isinstance(link, Unserialisable) for link in chain):
        return ProviderRejected
    if any(isinstance(link, PERMANENT_ERRORS) for link in chain):
        return ProviderMisconfigured
    if isinstance(exc, (anthropic.APIConnectionError, httpx2.ConnectError, httpx2.ProxyError)):
        return ProviderBusy
    return ProviderGarbled


def _is_out_of_credit(exc: Exception) -> bool:
    """It is called an invalid request, but no other request would be accepted either."""
    return "credit balance" in str(exc) and _known_type(exc) == "invalid_request_error"


def _is_about_this_request(exc: Exception, chain: Iterable[BaseException]) -> bool:
    """Whether the request itself was refused, as too long or invalid: the next one may well be accepted."""
    if any(isinstance(link, Unserialisable) for link in chain):
        return True
    return _known_type(exc) in REQUEST_ERROR_TYPES or getattr(exc, "status_code", 0) in (400, 413)


def _known_type(exc: Exception) -> str | None:
    """What the API calls the error, if it is one of the names that we know."""
    kind = exc.kind if isinstance(exc, ErrorEvent) else getattr(exc, "type", None)
    return kind if isinstance(kind, str) and kind in ERROR_TYPES else None


def _class_for_status(status: int, error_type: str) -> type[ProviderError]:
    if status == 408:
        return ProviderTimeout
    if status == 429 or status >= 500:
        return ProviderBusy
    # A redirect means that the configured address is wrong. It is not followed, because the key would be sent
    # along.
    if status in SETUP_STATUSES or 300 <= status < 400:
        return ProviderMisconfigured
    return ProviderRejected if status >= 400 else ERROR_TYPES.get(error_type, ProviderGarbled)


def _request_id(exc: Exception) -> str | None:
    """If it looks like one: it stands in our log."""
    found = getattr(exc, "request_id", None)
    return found if isinstance(found, str) and re.fullmatch(r"[\w.:-]{1,128}", found, re.ASCII) else None


def retry_after_of(exc: Exception, now: float) -> float | None:
    """Seconds from ``now``. The header has seconds or a date; anything else counts as no header."""
    response = getattr(exc, "response", None)
    header = response.headers.get("retry-after", "") if response is not None else ""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _chain(exc: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while exc is not None and exc not in links:
        links.append(exc)
        exc = exc.__cause__
    return links


def _without(key: str, value: Any) -> Any:
    return value.replace(key, "***") if key and isinstance(value, str) else value
