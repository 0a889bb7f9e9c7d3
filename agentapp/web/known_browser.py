"""A browser that has signed in before. It has a cookie that says so, for a year, whoever is signed in now.

With it, the wrong guesses of others do not lock the owner out: see ``guardrails/sign_in.py``. It signs
nobody in.
"""

from __future__ import annotations

import hashlib
import secrets

from flask import Response, current_app, request
from itsdangerous import BadData, URLSafeTimedSerializer

from agentapp.web.dated_signer import DatedSigner
from agentapp.web.parts import parts

YEAR_SECONDS = 365 * 24 * 3600


def known_browser(name: str) -> str | None:
    """What stands for this browser, if it has signed in with this name before."""
    cookie = request.cookies.get(_cookie_name())
    if not cookie:
        return None
    user_id, password_hash = parts().accounts.id_and_hash(name)
    try:
        owner, browser = _signer(password_hash).loads(cookie, max_age=YEAR_SECONDS)
    except BadData:
        return None
    return str(browser) if owner == user_id else None


def remember_browser(answer: Response, name: str, browser: str | None) -> Response:
    """Somebody has signed in with this name. A browser that was known stays the same one."""
    user_id, password_hash = parts().accounts.id_and_hash(name)
    cookie = _signer(password_hash).dumps([user_id, browser or secrets.token_urlsafe(16)])
    answer.set_cookie(
        _cookie_name(),
        cookie,
        max_age=YEAR_SECONDS,
        secure=parts().settings.https,
        httponly=True,
        samesite="Strict",
    )
    return answer


def _signer(password_hash: str) -> URLSafeTimedSerializer:
    """The hash is a part of the key, so a cookie is void after the password was changed."""
    return URLSafeTimedSerializer(
        str(current_app.secret_key),
        salt=f"agentapp known browser {password_hash}",
        signer=DatedSigner,
        signer_kwargs={
            "digest_method": hashlib.sha256,
            "key_derivation": "hmac",
            "clock": parts().db.clock.now,
        },
    )


def _cookie_name() -> str:
    return "__Host-agentapp-browser" if parts().settings.https else "agentapp-browser"
