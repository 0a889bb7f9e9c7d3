"""The pages. No package below this one knows Flask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Flask

from agentapp.web import (
    account,
    admin,
    all_chats,
    auth,
    chat,
    given_passwords,
    headers,
    health,
    hooks,
    incoming,
    metrics,
    origins,
    overload,
    pages,
    problems,
    turns,
)


class Application(Flask):
    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """No view and no hook is a coroutine. Flask would find that out anew for each of them, each time."""
        return func


def init_app(app: Flask) -> None:
    """The order matters: the scope is opened before any other code looks at the request."""
    hooks.init_app(app)
    headers.init_app(app)
    problems.init_app(app)
    incoming.init_app(app)
    origins.init_app(app)
    auth.init_app(app)
    given_passwords.init_app(app)
    pages.init_app(app)
    overload.init_app(app)
    app.register_blueprint(health.blueprint)
    app.register_blueprint(metrics.blueprint)
    app.register_blueprint(auth.blueprint)
    app.register_blueprint(chat.blueprint)
    app.register_blueprint(turns.blueprint)
    app.register_blueprint(account.blueprint)
    app.register_blueprint(all_chats.blueprint)
    admin.init_app(app)
