"""How near a chat is to its limits, as its page shows it: at most one notice, and the budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

from agentapp.errors import BudgetExhausted, GuardrailRefused, RateLimited, StorageFull
from agentapp.guardrails.guard import Meter, Standing
from agentapp.guardrails.storage_quota import StorageStanding
from agentapp.guardrails.wording import (
    DAYS_FROM,
    MAKE_ROOM,
    OPERATOR,
    clock,
    dollars,
    megabytes,
    refusal_text,
)

PROBE_TEXT = "This chat was paused. Trying once more: your next message is the one try."
ICONS: Mapping[str, str] = MappingProxyType(
    {"breaker-open": "pause", "budget-exhausted": "gauge", "storage-full": "gauge"}
)


class Level(NamedTuple):
    from_share: float  # of the limit
    name: str
    lead: str  # the words in front of the numbers


LEVELS = (
    Level(1.0, "full", "Used up: "),
    Level(0.9, "high", "Almost used up: "),
    Level(0.75, "low", "Running low: "),
)
STORAGE_LEVELS = (
    Level(1.0, "full", "Storage is full: "),
    Level(0.9, "high", "Storage is almost full: "),
    Level(0.75, "low", "Storage is filling up: "),
)
NO_LEVEL = Level(0.0, "", "")


@dataclass(frozen=True, slots=True)
class Notice:
    """Why the next message would be refused, or that it is the one try of a chat that was paused.

    After ``reason`` comes the sentence that says how long to wait, in three pieces: the time, and the words
    before and after it. Then comes ``more``, which says what else can be done.
    """

    kind: str
    icon: str
    reason: str
    before: str = ""
    time: str = ""
    after: str = ""
    more: str = ""
    seconds: int | None = None  # to count down from
    offer: str = ""  # the text of the button for a new chat, if a new chat would help
    links_chats: bool = False  # deleting some of them would help


@dataclass(frozen=True, slots=True)
class MeterView:
    scope: str
    level: str  # empty, low, high or full
    used: int
    limit: int
    lead: str
    words: str
    more: str = ""  # what else can be done
    links_chats: bool = False  # it is done on the page with all chats


@dataclass(frozen=True, slots=True)
class LimitsView:
    notice: Notice | None
    meters: tuple[MeterView, ...]
    not_sent: bool = False


def limits_view(
    standing: Standing,
    storage: StorageStanding | None = None,
    *,
    running: bool = False,
    refusal: GuardrailRefused | None = None,
) -> LimitsView:
    """``refusal`` is that of the message that was just sent. It is shown even if it is out of date by now.

    Without one, the view shows why the next message would be refused. It does not while the chat is
    ``running``: then the reason is mostly the answer that is being written.
    """
    storage = storage or StorageStanding()
    # A message is told of the storage first: see `Turn.begin`.
    shown = refusal or (None if running else storage.refusal or standing.refusal)
    notice = _notice(shown) if shown else None
    if notice is None and standing.half_open and not running:
        notice = Notice("half-open", "info", PROBE_TEXT)
    meters = (*storage_views(storage, shown), *_meter_views(standing.meters, shown))
    return LimitsView(notice, meters, refusal is not None)


def storage_views(storage: StorageStanding, refusal: GuardrailRefused | None = None) -> tuple[MeterView, ...]:
    """Only what is filling up: before that, nobody needs to think of it."""
    views = [_storage_view(meter, refusal) for meter in storage.meters]
    return tuple(view for view in views if view.level)


def _notice(refusal: GuardrailRefused) -> Notice:
    reason, wait, more = refusal_text(refusal)
    before, _, after = wait.partition("{}")
    counts_down = wait and refusal.retry_after < DAYS_FROM
    return Notice(
        kind=refusal.code,
        icon="alert" if refusal.scope == "provider" else ICONS.get(refusal.code, "clock"),
        reason=reason,
        before=before,
        time=clock(refusal.retry_after) if wait else "",
        after=after,
        more=more,
        seconds=max(1, ceil(refusal.retry_after)) if counts_down else None,
        offer=_offer(refusal),
        links_chats=isinstance(refusal, StorageFull),
    )


def _offer(refusal: GuardrailRefused) -> str:
    """A new chat helps only if the limit is this chat's own. For a rate limit, a short wait is better."""
    if refusal.scope != "session" or isinstance(refusal, RateLimited):
        return ""
    if isinstance(refusal, BudgetExhausted):
        return "Start a new chat" if refusal.used >= refusal.limit else ""
    return "New chat"


def _meter_views(meters: tuple[Meter, ...], refusal: GuardrailRefused | None) -> tuple[MeterView, ...]:
    """All budgets that run low. If none does, the one with the least left, if any of it is used yet."""
    views = [_meter_view(meter, refusal) for meter in meters]
    return tuple(view for view in views if view.level) or tuple(view for view in views[:1] if view.used)


def _meter_view(meter: Meter, refusal: GuardrailRefused | None) -> MeterView:
    level = _level(meter, LEVELS)
    in_notice = isinstance(refusal, BudgetExhausted) and refusal.scope == meter.scope
    return MeterView(
        scope=meter.scope,
        level=level.name,
        used=min(meter.used, meter.limit),
        limit=meter.limit,
        lead=level.lead,
        words=_usage_text(meter),
        more=OPERATOR if level.name == "full" and not in_notice else "",
    )


def _storage_view(meter: Meter, refusal: GuardrailRefused | None) -> MeterView:
    level = _level(meter, STORAGE_LEVELS)
    in_notice = isinstance(refusal, StorageFull) and refusal.scope == meter.scope
    of_tenant = " in your organisation" if meter.scope == "tenant" else ""
    return MeterView(
        scope=meter.scope,
        level=level.name,
        used=min(meter.used, meter.limit),
        limit=meter.limit,
        lead=level.lead,
        words=f"{megabytes(meter.used)} of {megabytes(meter.limit)}{of_tenant}",
        more="" if in_notice else MAKE_ROOM,
        links_chats=not in_notice,
    )


def _level(meter: Meter, levels: tuple[Level, ...]) -> Level:
    return next((level for level in levels if meter.share >= level.from_share), NO_LEVEL)


def _usage_text(meter: Meter) -> str:
    match meter.scope:
        case "user":
            return f"{dollars(meter.used)} of {dollars(meter.limit)} today; resets 00:00 UTC"
        case "tenant":
            return f"{dollars(meter.used)} of {dollars(meter.limit)} this month in your organisation"
    return f"{meter.used:,} of {meter.limit:,} tokens in this chat"
