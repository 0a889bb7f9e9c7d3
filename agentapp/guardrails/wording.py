"""What a person is told when a guardrail says no: whose limit it is, what still works, when to come back."""

from __future__ import annotations

from math import ceil

from agentapp.errors import BreakerOpen, BudgetExhausted, Busy, GuardrailRefused, RateLimited


def explained(refusal: GuardrailRefused) -> str:
    match refusal:
        case BreakerOpen():
            return f"{_paused(refusal)} Try again in {clock(refusal.retry_after)}."
        case RateLimited():
            return f"{_too_fast(refusal)} Try again in {clock(refusal.retry_after)}."
        case BudgetExhausted():
            return _spent(refusal)
        case Busy():
            return f"{_full(refusal)} Try again in a moment."
    return str(refusal)


def clock(seconds: float) -> str:
    """As on a kitchen timer: 0:42, 14:05, 3:00:00."""
    whole = max(1, ceil(seconds))
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def dollars(microusd: int) -> str:
    return f"${microusd / 1_000_000:,.2f}"


def _paused(refusal: GuardrailRefused) -> str:
    errors = f"{refusal.used} error{'' if refusal.used == 1 else 's'} in a row"
    match refusal.scope:
        case "provider":
            return "The model is not answering for anybody right now. It is tried again by itself."
        case "user":
            return f"Your chats are paused: {errors} over all of them. Nobody else is affected."
    if not refusal.used:
        return "This chat is paused by an operator. Your other chats work."
    return f"This chat is paused: {errors}. Your other chats work."


def _too_fast(refusal: RateLimited) -> str:
    whose = {"user": "of yours", "tenant": "of your organisation's"}.get(refusal.scope, "in this chat")
    return f"That is too fast: at most {refusal.limit:,} messages {whose} {_within(refusal.seconds)}."


def _spent(refusal: BudgetExhausted) -> str:
    if refusal.used < refusal.limit:
        return (
            f"All that is left of {_limit(refusal)} is reserved by answers under way. Try again in a moment."
        )
    if refusal.scope == "session":
        return (
            f"This chat has used all of {_limit(refusal)}. Start a new chat to go on; what was used still "
            "counts. An operator can raise the limit."
        )
    resets = f"It starts anew in {clock(refusal.retry_after)}, at 00:00 UTC."
    return f"All of {_limit(refusal)} is used. {resets} An operator can raise the limit."


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
            return f"{refusal.used:,} of your chats are answering already, and no more do at once."
        case "tenant":
            return (
                f"{refusal.used:,} chats of your organisation are answering already, and no more do at once."
            )
    return "The server has no room for another answer right now."


def _within(seconds: float) -> str:
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= unit and seconds % unit == 0:
            count = int(seconds // unit)
            return f"a {name}".replace("a hour", "an hour") if count == 1 else f"in {count} {name}s"
    return f"in {seconds:g} seconds"
