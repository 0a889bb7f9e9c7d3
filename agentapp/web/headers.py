"""The headers of every answer, error answers too."""

from __future__ import annotations

from flask import Flask, Response

from agentapp.web.parts import parts, request_id, this_request

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
YEAR_SECONDS = 365 * 24 * 3600
FIXED = (
    ("Content-Security-Policy", CONTENT_POLICY),
    ("X-Content-Type-Options", "nosniff"),
    # Not no-referrer: with that, browsers send "Origin: null" with our own forms.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)


def init_app(app: Flask) -> None:
    app.after_request(add_headers)


def add_headers(response: Response) -> Response:
    headers, request = response.headers, this_request()
    headers.extend(FIXED)  # no view sets one of these, so none is there twice
    headers["X-Request-ID"] = request_id()
    if request.endpoint == "static" and response.status_code in (200, 304):
        # An address with "v" contains a digest of the content, so browsers need not ask for it again.
        headers["Cache-Control"] = (
            f"public, max-age={YEAR_SECONDS}, immutable" if "v" in request.args else "no-cache"
        )
    else:
        headers["Cache-Control"] = "no-store"
    if parts().settings.https:
        headers["Strict-Transport-Security"] = f"max-age={YEAR_SECONDS}"
    return response
