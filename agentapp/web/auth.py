"""Signing in and out, and the first account.

The login's row in the database decides who is signed in. The cookie only names that row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from flask import (
    Blueprint,
    Flask,
    Response,
    current_app,
    g,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from flask.typing import ResponseReturnValue
from flask_login import LoginManager, UserMixin, current_user, login_user, logout_user
from flask_wtf.csrf import generate_csrf
from itsdangerous import BadSignature
from werkzeug.sansio.http import parse_cookie  # as Flask does; the other one refuses what is not UTF-8

from agentapp.errors import BadRequest, GuardrailRefused, NotFound, WrongPassword
from agentapp.storage.accounts import SETUP_LINK_USED
from agentapp.storage.opened_logins import LOGIN_LIFETIME, Origin
from agentapp.storage.values import User
from agentapp.web.audit_notes import password_tried
from agentapp.web.browsers import MAX_ADDRESS_CHARS, MAX_KEPT_CHARS, kept
from agentapp.web.ended_logins import EndedLogins
from agentapp.web.incoming import field, local_path, next_field
from agentapp.web.known_browser import known_browser, remember_browser
from agentapp.web.negotiation import wants_page
from agentapp.web.parts import parts, request_id
from agentapp.web.problems import answer_with_page, status_of
from agentapp.web.sessions import Csrf, Sessions

# In the signed cookie, only for `user_of` and `tenant_of`: it is the login that says who it is.
USER, TENANT = "agentapp_user", "agentapp_tenant"
TENANTS_REMEMBERED = 10_000

blueprint = Blueprint("auth", __name__)


class SignedIn(UserMixin):  # type: ignore[misc]
    """What flask-login keeps during a request. Its id is the login's token, not the user's id."""

    def __init__(self, user: User, token: str) -> None:
        self.user, self.token = user, token

    def get_id(self) -> str:
        return self.token


class _Logins(LoginManager):  # type: ignore[misc]
    """Never reads flask-login's second cookie, "remember me". We never set it: one that comes is forged."""

    def _load_user_from_remember_cookie(self, cookie: str) -> None:
        return None

    def _session_protection_failed(self) -> bool:
        """It is off, for it trusts the address in X-Forwarded-For, which anybody can send. flask-login would
        make a digest of that address for each request all the same.
        """
        return False


def init_app(app: Flask) -> None:
    settings = app.extensions["agentapp"].settings
    app.config.update(
        SESSION_COOKIE_NAME="__Host-agentapp" if settings.https else "agentapp",
        SESSION_COOKIE_SECURE=settings.https,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_REFRESH_EACH_REQUEST=False,
        PERMANENT_SESSION_LIFETIME=LOGIN_LIFETIME,
        WTF_CSRF_TIME_LIMIT=None,  # a page that was left open over night must still be able to send
        # Behind TLS flask-wtf would ask for a Referer too, and scripts send none. It would protect against a
        # cookie that an attacker plants over plain HTTP, and the __Host- name already does.
        WTF_CSRF_SSL_STRICT=False,
    )
    clock = app.extensions["agentapp"].db.clock.estimate  # the main loop asks too, and must not wait
    app.session_interface = sessions = Sessions(app, clock)
    manager = _Logins()
    # Its context processor would look up the login once more, and so fail again, while the page is made that
    # says that the database is away.
    manager.init_app(app, add_context_processor=False)
    manager.session_protection = None
    manager.user_loader(_load_login)
    Csrf(app)
    app.extensions["agentapp.ended_logins"] = ended = EndedLogins()
    tenants: dict[str, str] = {}  # of the users whose cookies came last
    app.extensions["agentapp.user_of"] = _make_user_of(sessions, ended, tenants)
    app.extensions["agentapp.tenant_of"] = tenants.get


def _make_user_of(
    sessions: Sessions, ended: EndedLogins, tenants: dict[str, str]
) -> Callable[[str], str | None]:
    def user_of(cookies: str) -> str | None:
        """Whose cookies these are, as far as that can be told without the database; None if nobody signed in
        with them. The server shares out its threads by it, before it is known if the login has ended.

        Only the server's main loop calls it, so nothing is locked. It notes the user's tenant in ``tenants``.
        """
        value = parse_cookie(cookies).get(sessions.name)
        if not value:
            return None
        try:
            kept = sessions.loads(value)
        except BadSignature:
            return None
        if (user := _claimed_user(kept)) and (tenant := kept.get(TENANT)):
            tenants.pop(user, None)
            tenants[user] = tenant
            if len(tenants) > TENANTS_REMEMBERED:
                del tenants[next(iter(tenants))]
        return None if kept.get("_user_id") in ended else _claimed_user(kept)

    return user_of


def _claimed_user(cookie: Mapping[str, Any]) -> str | None:
    """A cookie from before there was a user in it has only the login."""
    return cookie.get(USER) or cookie.get("_user_id")


def signed_in_user() -> User | None:
    login = _login()
    return login.user if login else None


def claimed_user() -> str | None:
    """Whose cookie it is. Nobody has looked yet whether that login has ended."""
    return _claimed_user(session)


def login_token() -> str | None:
    """The token of this request's login, if there is one. A stream ends when its login does."""
    login = _login()
    return login.token if login else None


def _login() -> SignedIn | None:
    found = current_user._get_current_object()  # once: each look at `current_user` itself takes a while
    return found if isinstance(found, SignedIn) else None


@blueprint.get("/login")
def login_page() -> ResponseReturnValue:
    target = local_path(request.args.get("next"))
    if "user" in g:
        return redirect(target, 303)
    return render_template("login.html", error=None, username="", next=target)


@blueprint.post("/login")
def login() -> ResponseReturnValue:
    name, password = _name_and_password()
    target, browser = next_field(), known_browser(name)
    try:
        with password_tried(name, browser):
            user, token = parts().accounts.sign_in(name, password, login_token(), origin())
    except (WrongPassword, GuardrailRefused) as error:
        if not wants_page():
            raise
        page = render_template("login.html", error=str(error), username=name, next=target)
        return answer_with_page(page, error)
    start_login(user, token)
    return remember_browser(_redirect(target), user.name, browser)


@blueprint.post("/logout")
def logout() -> ResponseReturnValue:
    if current_user.is_authenticated:
        parts().accounts.sign_out(current_user.token, request_id())
        logout_user()
    session.clear()
    return redirect(url_for("auth.login_page"), 303)


@blueprint.get("/setup")
def setup_page() -> str:
    token = request.args.get("token", "")
    if not parts().accounts.knows_setup_token(token):
        raise NotFound(SETUP_LINK_USED)
    return render_template("setup.html", error=None, username="", token=token)


@blueprint.post("/setup")
def setup() -> ResponseReturnValue:
    setup_token = request.args.get("token") or field("token", max_chars=256, default="")
    name, password = _name_and_password()
    try:
        user, token = parts().accounts.set_up(setup_token, name, password, login_token(), origin())
    except BadRequest as error:
        if not wants_page():
            raise
        page = render_template("setup.html", error=str(error), username=name, token=setup_token)
        return page, status_of(error)
    start_login(user, token)
    return remember_browser(_redirect(url_for("chat.index")), user.name, None)


def origin() -> Origin:
    """Where this request is from, as the user is told of a login."""
    agent = request.headers.get("User-Agent")
    address = kept(request.remote_addr, MAX_ADDRESS_CHARS)
    return Origin(address, kept(agent, MAX_KEPT_CHARS), request_id())


def _redirect(path: str) -> Response:
    return cast(Response, redirect(path, 303, Response))


def _name_and_password() -> tuple[str, str]:
    return field("username", max_chars=256), field("password", max_chars=4096)


def start_login(user: User, token: str) -> None:
    """Make a new cookie for a new login. It takes over nothing from the cookie before it."""
    session.clear()
    session.permanent = True
    login_user(SignedIn(user, token))
    session[USER], session[TENANT] = user.id, user.tenant_id
    # Made now: otherwise two pages that are opened at once would each make a token, and only one of the two
    # tokens would be in the cookie.
    generate_csrf()


def _load_login(token: str) -> SignedIn | None:
    user = parts().accounts.user_of(token)
    if user is None:
        current_app.extensions["agentapp.ended_logins"].add(token)
        return None
    parts().seen_logins.note(token)
    return SignedIn(user, token)
