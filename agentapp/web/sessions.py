"""The signed texts that come with every request: the cookie that holds the session, and the CSRF token.

They are read and checked as Flask and flask-wtf do it, but the same text only once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hmac import compare_digest
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from flask import Flask, Request, Response, g, session
from flask.sessions import SecureCookieSession, SecureCookieSessionInterface, SessionMixin
from flask_wtf.csrf import CSRFProtect
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

from agentapp.web.dated_signer import DatedSigner
from agentapp.web.incoming import json_csrf_token
from agentapp.web.parts import this_request

MOST_REMEMBERED = 2_000
CSRF_FIELD = "csrf_token"  # in a form or in JSON, and in the session
# Nothing can be changed inside of these, so a copy of the mapping around them shares nothing.
FIXED_TYPES = (str, int, float, type(None))

V = TypeVar("V")


class Remembered(Generic[V]):
    """What was found out about each of the texts that came last, of those that clients send with every
    request. Put in only what was verified: then nobody can fill it with texts of their own making. The values
    are shared by all threads, so nothing may change them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, V] = {}  # the oldest first

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)

    def get(self, text: str) -> V | None:
        with self._lock:
            return self._values.get(text)

    def put(self, text: str, value: V) -> None:
        with self._lock:
            self._values[text] = value
            if len(self._values) > MOST_REMEMBERED:
                del self._values[next(iter(self._values))]


class _Cookie(NamedTuple):
    payload: Mapping[str, Any]
    signed_at: int  # seconds since 1970


class Sessions(SecureCookieSessionInterface):
    """Flask's own, with a signer that is made once and has this clock. The signature of the same cookie is
    verified once; its age is looked at each time, and it is the login's row in the database that says if it
    still counts.
    """

    def __init__(self, app: Flask, clock: Callable[[], float]) -> None:
        self._clock, self._signer = clock, super().get_signing_serializer(app)
        if self._signer is not None:
            self._signer.signer = DatedSigner
            self._signer.signer_kwargs["clock"] = clock
        self.name = self.get_cookie_name(app)
        self._max_age = int(app.permanent_session_lifetime.total_seconds())
        self._cookies: Remembered[_Cookie] = Remembered()

    def get_signing_serializer(self, app: Flask) -> URLSafeTimedSerializer | None:
        return self._signer

    def loads(self, value: str) -> dict[str, Any]:
        """What is in a cookie, as a copy of one's own. Raises `BadSignature` if we have not signed it, or too
        long ago.
        """
        cookie = self._cookies.get(value)
        if cookie is None:
            return self._verified(value)
        if self._clock() - cookie.signed_at > self._max_age:
            raise SignatureExpired("this cookie is too old")
        return dict(cookie.payload)

    def open_session(self, app: Flask, request: Request) -> SecureCookieSession | None:
        if self._signer is None:
            return None
        value = request.cookies.get(self.name)
        try:
            return self.session_class(self.loads(value) if value else None)
        except BadSignature:
            return self.session_class()

    def save_session(self, app: Flask, session: SessionMixin, response: Response) -> None:
        """One that is as it came is not sent again: see ``SESSION_REFRESH_EACH_REQUEST``."""
        if session.modified:
            super().save_session(app, session, response)
        elif session.accessed:
            response.vary.add("Cookie")

    def get_expiration_time(self, app: Flask, session: SessionMixin) -> datetime | None:
        if not session.permanent:
            return None
        return datetime.fromtimestamp(self._clock(), UTC) + app.permanent_session_lifetime

    def _verified(self, value: str) -> dict[str, Any]:
        if self._signer is None:
            raise BadSignature("there is no key")
        payload, signed_at = self._signer.loads(value, max_age=self._max_age, return_timestamp=True)
        if all(isinstance(each, FIXED_TYPES) for each in payload.values()):
            fixed = MappingProxyType(dict(payload))
            self._cookies.put(value, _Cookie(fixed, int(signed_at.timestamp())))
        return dict(payload)


class Csrf(CSRFProtect):  # type: ignore[misc]
    """A token that flask-wtf has found valid for a session is valid for that session from then on: tokens
    have no time limit. A page sends the same one with every message.
    """

    def __init__(self, app: Flask) -> None:
        self._valid: Remembered[str] = Remembered()  # the session's own token, for each signed one
        super().__init__(app)

    def protect(self, apply_exemptions: bool = False) -> None:
        if this_request().method != "POST":
            super().protect(apply_exemptions)
            return
        sent = self._get_csrf_token()
        known = self._valid.get(sent) if sent else None
        if known is None or not compare_digest(known, str(session.get(CSRF_FIELD))):
            super().protect(apply_exemptions)
            if sent and "csrf_valid" in g:  # flask-wtf has really checked it, and not let it pass unseen
                self._valid.put(sent, session[CSRF_FIELD])

    def _get_csrf_token(self) -> str | None:
        """The token may come in a JSON body too, under the same name as in a form."""
        return this_request().form.get(CSRF_FIELD) or super()._get_csrf_token() or json_csrf_token()
