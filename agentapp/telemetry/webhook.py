"""The webhook: an alert as a signed POST, in the form of the Standard Webhooks specification."""

from __future__ import annotations

import base64
import hmac
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from agentapp.telemetry.alerts import StoredAlert

SECONDS = 10.0  # for the connection, and for each wait for the receiver


class DeliveryFailed(Exception):
    """The receiver did not take it. The text is shown to admins."""


class Webhook:
    """Sends one alert at a time. Its answer counts only as a status: 2xx has taken it, anything else has not,
    also a redirect, because the alert is for the address that was set and for no other.
    """

    def __init__(self, url: str, key: bytes, seconds: float = SECONDS) -> None:
        self._url, self._key, self._seconds = url, key, seconds
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._opener = OpenerDirector()  # with nothing in it that follows redirects
        for handler in (ProxyHandler(), _Http(self._remember), _Https(self._remember)):
            self._opener.add_handler(handler)

    def send(self, alert: StoredAlert) -> None:
        """Raises `DeliveryFailed`."""
        body, id = body_of(alert), delivery_id(alert)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "agentapp",
            **signed_headers(self._key, id, int(time.time()), body),
        }
        request = Request(self._url, body, headers, method="POST")  # noqa: S310 - http or https, see config
        try:
            with self._opener.open(request, timeout=self._seconds) as answer:
                status = answer.status
        except (OSError, http.client.HTTPException) as error:
            raise DeliveryFailed(_in_words(error)) from None
        finally:
            self._remember(None)
        if not 200 <= status < 300:
            raise DeliveryFailed(f"it answered {status}")

    def give_up(self) -> None:
        """Have `send` in another thread fail at once: it takes too long, or the worker ends."""
        with self._lock:
            found = self._connection.sock if self._connection is not None else None
        if isinstance(found, socket.socket):
            with suppress(OSError):  # it has just ended by itself
                found.shutdown(socket.SHUT_RDWR)

    def _remember(self, connection: http.client.HTTPConnection | None) -> None:
        with self._lock:
            self._connection = connection


def body_of(alert: StoredAlert) -> bytes:
    """Ids and words of our own: nothing that people or models said, no names, no secrets."""
    data = {
        "id": alert.id,
        "kind": alert.kind,
        "severity": alert.severity,
        "tenant_id": alert.tenant_id,
        "subject": alert.subject,
        "detail": alert.detail,
        "request_id": alert.request_id,
        "count": alert.count,
        "first_at": alert.first_at.isoformat(),
        "last_at": alert.last_at.isoformat(),
    }
    told = {"type": "alert.raised", "timestamp": alert.last_at.isoformat(), "data": data}
    return json.dumps(told).encode()


def delivery_id(alert: StoredAlert) -> str:
    """The same for all tries to send it, until it is raised again later and sent anew."""
    since = 0 if alert.delivery_since is None else int(alert.delivery_since.timestamp())
    return f"{alert.id}-{since}"


def signed_headers(key: bytes, id: str, timestamp: int, body: bytes) -> Mapping[str, str]:
    digest = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _in_words(error: Exception) -> str:
    """Without the path of the address, which may be a secret."""
    cause = getattr(error, "reason", error)  # urllib wraps what went wrong
    if isinstance(cause, TimeoutError):
        return "it took too long"
    number = getattr(cause, "strerror", None)
    return f"no answer: {number if isinstance(number, str) else type(cause).__name__}"


_Remember = Callable[[http.client.HTTPConnection], None]


class _Http(HTTPHandler):
    """Tells which connection it makes."""

    def __init__(self, remember: _Remember) -> None:
        super().__init__()
        self._remember = remember

    def http_open(self, request: Request) -> Any:
        return self.do_open(_remembering(http.client.HTTPConnection, self._remember), request)


class _Https(HTTPSHandler):
    def __init__(self, remember: _Remember) -> None:
        super().__init__()
        self._remember = remember

    def https_open(self, request: Request) -> Any:
        return self.do_open(_remembering(http.client.HTTPSConnection, self._remember), request)


def _remembering(kind: Callable[..., http.client.HTTPConnection], remember: _Remember) -> Any:
    def make(host: str, **how: Any) -> http.client.HTTPConnection:
        made = kind(host, **how)
        remember(made)
        return made

    return make
