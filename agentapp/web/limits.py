"""How a chat stands with its limits, as its page shows it: one notice at most, and the budgets."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from agentapp.errors import BudgetExhausted, GuardrailRefused, RateLimited
from agentapp.guardrails.guard import Meter, Standing
from agentapp.guardrails.wording import DAYS_FROM, OPERATOR, clock, dollars, refusal_text

# From this share on: the level, and the words in front of the numbers.
LEVELS = ((1.0, "full", "Used up: "), (0.9, "high", "Almost used up: "), (0.75, "low", "Running low: "))
PROBE = "This chat was paused. Trying once more: your next message is the one try."
ICONS = (("breaker-open", "pause"), ("budget-exhausted", "gauge"))


@dataclass(frozen=True, slots=True)
class Notice:
    """Why the next message would be refused, or that it is the one try of a chat that was paused."""

    kind: str
    icon: str
    reason: str
    before: str = ""
    time: str = ""
    after: str = ""
    more: str = ""
    seconds: int | None = None  # to count down from
    offer: str = ""  # what the button for a new chat says, where a new chat would help


@dataclass(frozen=True, slots=True)
class MeterView:
    scope: str
    level: str  # nothing, low, high or full
    used: int
    limit: int
    lead: str
    words: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class LimitsView:
    notice: Notice | None
    meters: tuple[MeterView, ...]
    not_sent: bool = False


def limits_view(
    standing: Standing, *, running: bool = False, refusal: GuardrailRefused | None = None
) -> LimitsView:
    """``refusal`` is the one that a message has just met: people are told that one, whatever is true by now.

    While the chat answers, what keeps the next message waiting is mostly that answer itself.
    """
    found = refusal or (None if running else standing.refusal)
    notice = _notice(found) if found else None
    if notice is None and standing.half_open and not running:
        notice = Notice("half-open", "info", PROBE)
    return LimitsView(notice, _meters(standing.meters, found), refusal is not None)


def _notice(refusal: GuardrailRefused) -> Notice:
    reason, wait, more = refusal_text(refusal)
    before, _, after = wait.partition("{}")
    counted = wait and refusal.retry_after < DAYS_FROM
    return Notice(
        kind=refusal.code,
        icon="alert" if refusal.scope == "provider" else dict(ICONS).get(refusal.code, "clock"),
        reason=reason,
        before=before,
        time=clock(refusal.retry_after) if wait else "",
        after=after,
        more=more,
        seconds=max(1, ceil(refusal.retry_after)) if counted else None,
        offer=_offer(refusal),
    )


def _offer(refusal: GuardrailRefused) -> str:
    """Only what belongs to this chat alone is different in another, and a short wait is no reason to go."""
    if refusal.scope != "session" or isinstance(refusal, RateLimited):
        return ""
    if isinstance(refusal, BudgetExhausted):
        return "Start a new chat" if refusal.used >= refusal.limit else ""
    return "New chat"


def _meters(meters: tuple[Meter, ...], refusal: GuardrailRefused | None) -> tuple[MeterView, ...]:
    """All that run low; if none does, the tightest, unless nothing of it is used yet."""
    views = [_meter(meter, refusal) for meter in meters]
    return tuple(view for view in views if view.level) or tuple(view for view in views[:1] if view.used)


def _meter(meter: Meter, refusal: GuardrailRefused | None) -> MeterView:
    level, lead = next(((name, lead) for least, name, lead in LEVELS if meter.share >= least), ("", ""))
    said = isinstance(refusal, BudgetExhausted) and refusal.scope == meter.scope
    return MeterView(
        scope=meter.scope,
        level=level,
        used=min(meter.used, meter.limit),
        limit=meter.limit,
        lead=lead,
        words=_words(meter),
        more=OPERATOR if level == "full" and not said else "",
    )


def _words(meter: Meter) -> str:
    match meter.scope:
        case "user":
            return f"{dollars(meter.used)} of {dollars(meter.limit)} today; resets 00:00 UTC"
        case "tenant":
            return f"{dollars(meter.used)} of {dollars(meter.limit)} this month in your organisation"
    return f"{meter.used:,} of {meter.limit:,} tokens in this chat"
