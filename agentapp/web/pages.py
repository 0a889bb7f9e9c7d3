"""What every page needs: the user, the theme, the addresses of static files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from flask import Flask, g, redirect, request, url_for
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest
from agentapp.web.incoming import field, next_field
from agentapp.web.parts import parts, request_id

THEMES = ("system", "light", "dark")
THEME_COOKIE_SECONDS = 365 * 24 * 3600


def init_app(app: Flask) -> None:
    digests = _digests(Path(app.static_folder or ""))

    def asset(name: str) -> str:
        return url_for("static", filename=name, v=digests.get(name))

    @app.context_processor
    def template_values() -> dict[str, object]:
        return {
            "asset": asset,
            "user": g.get("user"),
            "demo": parts().demo,
            "theme": _theme(),
            "request_id": request_id(),
        }

    app.add_url_rule("/", "home", lambda: redirect(url_for("chat.index"), 303))
    app.add_url_rule("/theme", "theme", set_theme, methods=["POST"])


def set_theme() -> ResponseReturnValue:
    choice = field("theme", max_chars=16)
    if choice not in THEMES:
        raise BadRequest(f"A theme is one of {', '.join(THEMES)}.")
    answer = redirect(next_field(), 303)
    answer.set_cookie(
        "theme",
        choice,
        max_age=THEME_COOKIE_SECONDS,
        samesite="Lax",
        httponly=True,
        secure=parts().settings.https,
    )
    return answer


def _theme() -> str:
    choice = request.cookies.get("theme", "system")
    return choice if choice in THEMES else "system"


def _digests(folder: Path) -> dict[str, str]:
    """Computed once at start, because the files do not change while the server runs."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in files
    }
