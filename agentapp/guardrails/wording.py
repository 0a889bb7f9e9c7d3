"""What a person reads when a guardrail refuses: whose limit it is, what still works, when to come back."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple, TypeVar

from agentapp.errors import BreakerOpen, BudgetExhausted, Busy, GuardrailRefused, RateLimited, StorageFull

Refusal = TypeVar("Refusal", bound=GuardrailRefused)

AGAIN = "Try again in {}."
OPERATOR = "An operator can raise the limit."
MAKE_ROOM = "Delete chats to make room."
DAYS_FROM = 172_800  # From two days on, the wait is given in days.


class RefusalText(NamedTuple):
    """A refusal in words. The wait is a part of its own, with {} for the time, because on a page it counts
    down. It is empty if the time is not known.
    """

    reason: str
    wait: str = ""
    more: str = ""


def stamp_refusal(refusal: Refusal, scope: str) -> Refusal:
    """Write into a refusal whose limit it was, and the sentence that says so."""
    refusal.scope = scope
    refusal.args = (explained(refusal),)
    return refusal


def explained(refusal: GuardrailRefused) -> str:
    reason, wait, more = refusal_text(refusal)
    return " ".join(part for part in (reason, wait.replace("{}", clock(refusal.retry_after)), more) if part)


def refusal_text(refusal: GuardrailRefused) -> RefusalText:
    match refusal:
        case BreakerOpen():
            return _paused(refusal)
        case RateLimited():
            return RefusalText(_too_fast(refusal), AGAIN)
        case BudgetExhausted():
            return _spent(refusal)
        case Busy():
            return RefusalText(_full(refusal), AGAIN)
        case StorageFull():
            return _no_room(refusal)
    return RefusalText(str(refusal))


def clock(seconds: float) -> str:
    """As on a timer: 0:42, 14:05, 3:00:00; and "18 days" if it is that long."""
    whole = max(1, ceil(seconds))
    if whole >= DAYS_FROM:
        return f"{ceil(whole / 86_400)} days"
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def dollars(microusd: int) -> str:
    """Rounded down: what is not used up yet must not look as if it were."""
    if 0 < microusd < 10_000:
        return f"${microusd // 100 / 10_000:.4f}"
    return f"${microusd // 10_000 / 100:,.2f}"


def megabytes(size: int) -> str:
    """Rounded down, for the same reason."""
    return f"{size // 100_000 / 10:,.1f}".removesuffix(".0") + " MB"


def _paused(refusal: GuardrailRefused) -> RefusalText:
    match refusal.scope:
        case "provider" if not refusal.used:
            return RefusalText("The model is paused for everybody by an operator.")
        case "provider":
            return RefusalText("The model is not answering right now, and not only for you.", AGAIN)
        case "tenant":
            return RefusalText("The chats of your organisation are paused by an operator.")
        case "user" if not refusal.used:
            return RefusalText("Your chats are paused by an operator or admin.")
        case "user":
            return RefusalText(
                f"All your chats are paused: {_errors(refusal)}. Nobody else is affected.",
                AGAIN,
            )
    if not refusal.used:
        return RefusalText("This chat is paused by an operator or admin. Your other chats work.")
    return RefusalText(f"This chat is paused: {_errors(refusal)}. Your other chats work.", AGAIN)


def _errors(refusal: GuardrailRefused) -> str:
    if refusal.used < refusal.limit:
        return "too many errors lately"  # Their share was too high, in whatever order they came.
    return f"{refusal.used} error{'' if refusal.used == 1 else 's'} in a row"


def _too_fast(refusal: RateLimited) -> str:
    if refusal.scope == "login":
        return "There were too many tries to sign in with this name or from this address."
    if refusal.scope == "new-chats":
        return f"That is too fast: at most {refusal.limit:,} new chats {_within(refusal.seconds)}."
    whose = {"user": "of yours", "tenant": "of your organisation's"}.get(refusal.scope, "in this chat")
    return f"That is too fast: at most {refusal.limit:,} messages {whose} {_within(refusal.seconds)}."


def _spent(refusal: BudgetExhausted) -> RefusalText:
    if refusal.used < refusal.limit:
        return RefusalText(f"All that is left of {_limit(refusal)} is reserved by answers under way.", AGAIN)
    if refusal.scope == "session":
        go_on = "Start a new chat to go on; what was used still counts."
        return RefusalText(f"This chat has used all of {_limit(refusal)}. {go_on}", more=OPERATOR)
    return RefusalText(f"All of {_limit(refusal)} is used.", "It starts anew in {}, at 00:00 UTC.", OPERATOR)


def _limit(refusal: BudgetExhausted) -> str:
    match refusal.scope:
        case "user":
            return f"your {dollars(refusal.limit)} for today"
        case "tenant":
            return f"your organisation's {dollars(refusal.limit)} for this month"
    return f"its {refusal.limit:,} tokens"


def _full(refusal: GuardrailRefused) -> str:
    match refusal.scope:
        case "user":
            return f"No more than {refusal.limit:,} of your chats can be answering at once."
        case "tenant":
            return f"No more than {refusal.limit:,} chats of your organisation can be answering at once."
        case "streams":
            return f"You follow {refusal.limit:,} answers at once already. Close some of those pages."
        case "pages":
            return f"No more than {refusal.limit:,} of your pages can be loading at once."
        case "login":
            return "Too many people are signing in at once."
    return "The server has too much to do right now."


def _no_room(refusal: StorageFull) -> RefusalText:
    whose = "The chats of your organisation" if refusal.scope == "tenant" else "Your chats"
    used, limit = megabytes(refusal.used), megabytes(refusal.limit)
    return RefusalText(f"{whose} take {used}, and {limit} is the limit.", more=f"{MAKE_ROOM} {OPERATOR}")


def _within(seconds: float) -> str:
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= unit and seconds % unit == 0:
            count = int(seconds // unit)
            return f"a {name}".replace("a hour", "an hour") if count == 1 else f"in {count} {name}s"
    return f"in {seconds:g} seconds"
