"""The pages. No package below this one knows Flask."""

from __future__ import annotations

from flask import Flask

from agentapp.web import (
    auth,
    chat,
    headers,
    health,
    hooks,
    incoming,
    origins,
    overload,
    pages,
    problems,
    turns,
)


def init_app(app: Flask) -> None:
    """The order matters: the scope is opened before any other code looks at the request."""
    hooks.init_app(app)
    headers.init_app(app)
    problems.init_app(app)
    incoming.init_app(app)
    origins.init_app(app)
    auth.init_app(app)
    pages.init_app(app)
    overload.init_app(app)
    app.register_blueprint(health.blueprint)
    app.register_blueprint(auth.blueprint)
    app.register_blueprint(chat.blueprint)
    app.register_blueprint(turns.blueprint)
