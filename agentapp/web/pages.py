"""What every page needs: who is signed in, the theme, addresses of static files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from flask import Flask, Response, g, redirect, request, url_for

from agentapp.errors import BadRequest
from agentapp.web.incoming import field, local_path
from agentapp.web.parts import parts, request_id

THEMES = ("system", "light", "dark")


def init_app(app: Flask) -> None:
    digests = _digests(Path(app.static_folder or ""))

    def asset(name: str) -> str:
        return url_for("static", filename=name, v=digests.get(name))

    @app.context_processor
    def common() -> dict[str, Any]:
        return {
            "asset": asset,
            "user": g.get("user"),
            "demo": parts().demo,
            "theme": _theme(),
            "request_id": request_id(),
        }

    app.add_url_rule("/", "home", lambda: redirect(url_for("chat.index"), 303))
    app.add_url_rule("/theme", "theme", set_theme, methods=["POST"])


def set_theme() -> Response:
    choice = field("theme", most=16)
    if choice not in THEMES:
        raise BadRequest(f"A theme is one of {', '.join(THEMES)}.")
    answer = redirect(local_path(field("next", most=2048, default="")), 303)
    answer.set_cookie(
        "theme", choice, max_age=365 * 24 * 3600, samesite="Lax", httponly=True, secure=parts().settings.https
    )
    return answer  # type: ignore[return-value]


def _theme() -> str:
    choice = request.cookies.get("theme", "system")
    return choice if choice in THEMES else "system"


def _digests(folder: Path) -> dict[str, str]:
    """Read once at start: the files do not change while the server runs."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in files
    }
