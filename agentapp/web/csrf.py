"""The check of the CSRF token: flask-wtf's, for tokens in JSON too, and once for the same token."""

from __future__ import annotations

from hmac import compare_digest

from flask import Flask, g, session
from flask_wtf.csrf import CSRFProtect

from agentapp.web.incoming import json_csrf_token
from agentapp.web.parts import this_request
from agentapp.web.remembered import Remembered

FIELD = "csrf_token"  # in a form or in JSON, and in the session


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
        if known is None or not compare_digest(known, str(session.get(FIELD))):
            super().protect(apply_exemptions)
            if sent and "csrf_valid" in g:  # flask-wtf has really checked it, and not let it pass unseen
                self._valid.put(sent, session[FIELD])

    def _get_csrf_token(self) -> str | None:
        """The token may come in a JSON body too, under the same name as in a form."""
        return this_request().form.get(FIELD) or super()._get_csrf_token() or json_csrf_token()
