"""Which passwords are good enough to be set."""

from __future__ import annotations

import re
import secrets

from agentapp.errors import BadRequest
from agentapp.storage.names import normalise_name

MIN_PASSWORD_CHARS, MAX_PASSWORD_BYTES = 8, 1024
# What would be among the first ten thousand guesses is common. More would refuse what people think of as a
# password of their own, and the sign-in takes days for so many guesses.
MIN_GUESSES = 10**4
# The estimate takes a time that grows with the third power of the length, and up to a second for this many
# characters if they are chosen for it. What begins this well needs no further look.
MAX_ESTIMATED_CHARS = 32
# Letters and digits that nobody takes for another one when they are read out: 78 bits.
LETTERS, GROUPS, GROUP_CHARS = "abcdefghjkmnpqrstuvwxyz23456789", 4, 4


def new_password() -> str:
    """One that nobody can guess, for somebody who is to choose another soon."""
    groups = ("".join(secrets.choice(LETTERS) for _ in range(GROUP_CHARS)) for _ in range(GROUPS))
    return "-".join(groups)


def check_password(password: str, name: str) -> None:
    """Only where a password is set. Who has a worse one from before can still sign in."""
    if len(password) < MIN_PASSWORD_CHARS or bytes_of(password) > MAX_PASSWORD_BYTES:
        raise BadRequest(
            f"A password has at least {MIN_PASSWORD_CHARS} characters and at most {MAX_PASSWORD_BYTES} bytes."
        )
    if not password.strip():
        raise BadRequest("A password must not be made of spaces only.")
    if normalise_name(password) == normalise_name(name):
        raise BadRequest("The password must not be the name.")
    if _is_common(password, name):
        raise BadRequest(
            "This password is easy to guess: it is a common one, or little more than a word, a name, a row of"
            " keys or a repetition. Choose another, such as three words that have nothing to do with each"
            " other."
        )


def bytes_of(password: str) -> int:
    return len(password.encode("utf-8", "replace"))


def _is_common(password: str, name: str) -> bool:
    """Whether it stands in a list, or somebody who knows the name would come to it soon."""
    # Here and not above: it holds long lists, and hardly any process ever sets a password.
    from zxcvbn import matching, scoring

    # What the function `zxcvbn` does, except that it puts the name into a dictionary that all threads share.
    known = [name.lower(), *re.findall(r"[^\W_]+", name.lower()), "agentapp"]
    lists = {**matching.RANKED_DICTIONARIES, "user_inputs": matching.build_ranked_dict(known)}
    looked_at = password.strip()[:MAX_ESTIMATED_CHARS]
    if any(password.lower() in ranked for ranked in lists.values()):
        return True
    found = scoring.most_guessable_match_sequence(looked_at, matching.omnimatch(looked_at, lists))
    return bool(found["guesses"] < MIN_GUESSES)
