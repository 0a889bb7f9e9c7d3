"""Which passwords are good enough to be set."""

from __future__ import annotations

from agentapp.errors import BadRequest
from agentapp.storage.names import normalise_name

MIN_PASSWORD_CHARS, MAX_PASSWORD_BYTES = 8, 1024


def check_password(password: str, name: str) -> None:
    """Only where a password is set. Who has a worse one from before can still sign in."""
    if len(password) < MIN_PASSWORD_CHARS or bytes_of(password) > MAX_PASSWORD_BYTES:
        raise BadRequest(
            f"A password has at least {MIN_PASSWORD_CHARS} characters and at most {MAX_PASSWORD_BYTES} bytes."
        )
    if normalise_name(password) == normalise_name(name):
        raise BadRequest("The password must not be the name.")
    if _is_common(password):
        raise BadRequest(
            "This password is one of the most common ones, which are guessed first. Choose another."
        )


def bytes_of(password: str) -> int:
    return len(password.encode("utf-8", "replace"))


def _is_common(password: str) -> bool:
    # Here and not above: it holds long lists, and hardly any process ever sets a password.
    from zxcvbn.frequency_lists import FREQUENCY_LISTS

    return password.strip().casefold() in FREQUENCY_LISTS["passwords"]
