"""Who has a password that somebody else chose has to choose another one, before anything else."""

from __future__ import annotations

from flask import Flask, g, redirect
from flask.typing import ResponseReturnValue

from agentapp.errors import Forbidden
from agentapp.web.hooks import FOR_EVERYBODY
from agentapp.web.negotiation import wants_page
from agentapp.web.parts import this_request

CHOOSE_ONE = "Somebody else chose your password. Choose one of your own first, on the account page."
STILL_ALLOWED = FOR_EVERYBODY | {
    "account.show",
    "account.change_password",
    "auth.login_page",
    "auth.login",
    "auth.logout",
    "theme",
}


def init_app(app: Flask) -> None:
    app.before_request(require_own_password)


def require_own_password() -> ResponseReturnValue | None:
    if "user" not in g or not g.user.must_change or this_request().endpoint in STILL_ALLOWED:
        return None
    if wants_page():
        return redirect("/account#password", 303)
    raise Forbidden(CHOOSE_ONE)
