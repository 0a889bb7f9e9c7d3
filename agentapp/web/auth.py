"""Signing in and out, and the first account. The login row is the truth; the cookie only names it."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Flask, Response, g, redirect, render_template, request, session, url_for
from flask_login import LoginManager, UserMixin, current_user, login_user, logout_user
from flask_wtf.csrf import CSRFProtect, generate_csrf

from agentapp.errors import BadRequest, GuardrailRefused, NotFound, WrongPassword
from agentapp.storage.accounts import LOGIN_LIFETIME, SETUP_LINK_USED, normalise_name
from agentapp.storage.values import User
from agentapp.web.incoming import field, json_token, local_path
from agentapp.web.negotiation import wants_page
from agentapp.web.parts import parts
from agentapp.web.problems import problem_of, status_of, with_retry_after

blueprint = Blueprint("auth", __name__)


class SignedIn(UserMixin):  # type: ignore[misc]
    """What flask-login keeps for the length of a request. Its id is the login's token, not the user's id."""

    def __init__(self, user: User, token: str) -> None:
        self.user, self.token = user, token

    def get_id(self) -> str:
        return self.token


class _Logins(LoginManager):  # type: ignore[misc]
    """Without a second cookie to sign in by: none is ever set, and one made up by hand is not read."""

    def _load_user_from_remember_cookie(self, cookie: str) -> None:
        return None


class _Csrf(CSRFProtect):  # type: ignore[misc]
    """The token may come in a JSON body too, under the same name as in a form."""

    def _get_csrf_token(self) -> str | None:
        return super()._get_csrf_token() or json_token()


def init_app(app: Flask) -> None:
    settings = app.extensions["agentapp"].settings
    app.config.update(
        SESSION_COOKIE_NAME="__Host-agentapp" if settings.https else "agentapp",
        SESSION_COOKIE_SECURE=settings.https,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_REFRESH_EACH_REQUEST=False,
        PERMANENT_SESSION_LIFETIME=LOGIN_LIFETIME,
        WTF_CSRF_TIME_LIMIT=None,  # a page left open over night must still be able to send
        # Behind TLS it would want a Referer on top of the token, and scripts send none. What that guards
        # against, a cookie planted by somebody on the wire, the __Host- name already rules out.
        WTF_CSRF_SSL_STRICT=False,
    )
    manager = _Logins()
    # Its context processor would look the login up once more while the page that says the database is away
    # is being made.
    manager.init_app(app, add_context_processor=False)
    # Its session protection hashes the address it reads from X-Forwarded-For, which anybody can send.
    manager.session_protection = None
    manager.user_loader(_load)
    _Csrf(app)


def signed_in_user() -> User | None:
    return current_user.user if current_user.is_authenticated else None


def login_token() -> str | None:
    """What names the login of this request: a stream ends when it does."""
    return current_user.token if current_user.is_authenticated else None


@blueprint.get("/login")
def login_page() -> Any:
    if "user" in g:
        return redirect(local_path(request.args.get("next")), 303)
    return render_template("login.html", error=None, username="", next=local_path(request.args.get("next")))


@blueprint.post("/login")
def login() -> Any:
    name, password = field("username", most=256), field("password", most=4096)
    target = local_path(field("next", most=2048, default=""))
    try:
        with parts().sign_ins.counted(normalise_name(name), request.remote_addr or ""):
            user, token = parts().accounts.sign_in(name, password)
    except (WrongPassword, GuardrailRefused) as error:
        if not wants_page():
            raise
        page = render_template("login.html", error=str(error), username=name, next=target)
        return with_retry_after(Response(page, status_of(error)), problem_of(error))
    _begin(user, token)
    return redirect(target, 303)


@blueprint.post("/logout")
def logout() -> Any:
    if current_user.is_authenticated:
        parts().accounts.sign_out(current_user.token)
        logout_user()
    session.clear()
    return redirect(url_for("auth.login_page"), 303)


@blueprint.get("/setup")
def setup_page() -> Any:
    token = request.args.get("token", "")
    if not parts().accounts.knows_setup_token(token):
        raise NotFound(SETUP_LINK_USED)
    return render_template("setup.html", error=None, username="", token=token)


@blueprint.post("/setup")
def setup() -> Any:
    token = request.args.get("token") or field("token", most=256, default="")
    name, password = field("username", most=256), field("password", most=4096)
    try:
        user, login_token = parts().accounts.set_up(token, name, password)
    except BadRequest as error:
        if not wants_page():
            raise
        page = render_template("setup.html", error=str(error), username=name, token=token)
        return page, status_of(error)
    _begin(user, login_token)
    return redirect(url_for("chat.index"), 303)


def _begin(user: User, token: str) -> None:
    """A new cookie for a new login: nothing of the anonymous one is carried over."""
    session.clear()
    session.permanent = True
    login_user(SignedIn(user, token))
    generate_csrf()  # now, or two pages opened at once would each make one and the cookie keep the later


def _load(token: str) -> SignedIn | None:
    user = parts().accounts.user_of(token)
    return SignedIn(user, token) if user else None
