"""The signed cookie that holds a session: read, verified and written as Flask does, with less work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from flask import Flask, Request, Response
from flask.sessions import SecureCookieSession, SecureCookieSessionInterface, SessionMixin
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

from agentapp.web.remembered import Remembered

# Nothing can be changed inside of these, so a copy of the mapping around them shares nothing.
FIXED_TYPES = (str, int, float, type(None))


class _Cookie(NamedTuple):
    payload: Mapping[str, Any]
    signed_at: int  # seconds since 1970


class Sessions(SecureCookieSessionInterface):
    """Flask's own, with a signer that is made once. The signature of the same cookie is verified once; its
    age is looked at each time, and it is the login's row in the database that says if it still counts.
    """

    def __init__(self, app: Flask) -> None:
        self._signer = super().get_signing_serializer(app)
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
        # As itsdangerous does it: one from the future is refused too.
        if not 0 <= int(time.time()) - cookie.signed_at <= self._max_age:
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

    def _verified(self, value: str) -> dict[str, Any]:
        if self._signer is None:
            raise BadSignature("there is no key")
        payload, signed_at = self._signer.loads(value, max_age=self._max_age, return_timestamp=True)
        if all(isinstance(each, FIXED_TYPES) for each in payload.values()):
            fixed = MappingProxyType(dict(payload))
            self._cookies.put(value, _Cookie(fixed, int(signed_at.timestamp())))
        return dict(payload)
