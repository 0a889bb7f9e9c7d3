"""The stretch of time that an admin page is about: the last hour, day or week, as its links say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from flask import request

from agentapp.errors import BadRequest
from agentapp.storage.count_series import Stretch

MINUTES_A_DAY = 1440


@dataclass(frozen=True, slots=True)
class Window:
    """``name`` is how the address says it. Each bar of a plot is so many ``minutes``."""

    name: str
    words: str
    bars: int
    minutes: int

    def until(self, now: float) -> Stretch:
        """The last bar has the minute that is now. All begin at round times, so that bars stay as they are
        while time goes on.
        """
        last = int(now // 60) // self.minutes
        return Stretch((last - self.bars + 1) * self.minutes, self.minutes, self.bars)

    def labels(self, stretch: Stretch) -> list[str]:
        """When each bar begins."""
        days = self.bars * self.minutes > MINUTES_A_DAY
        written = "%a %-d %b, %H:%M" if days else "%H:%M"
        starts = range(stretch.first, stretch.end, stretch.minutes)
        return [datetime.fromtimestamp(start * 60, UTC).strftime(written) for start in starts]


HOUR = Window("1h", "the last hour", 60, 1)
DAY = Window("24h", "the last 24 hours", 48, 30)
WEEK = Window("7d", "the last 7 days", 84, 120)
WINDOWS: Mapping[str, Window] = MappingProxyType({window.name: window for window in (HOUR, DAY, WEEK)})


def chosen_window() -> Window:
    name = request.args.get("window", HOUR.name)
    if name not in WINDOWS:
        raise BadRequest(f"The window is one of {', '.join(WINDOWS)}.")
    return WINDOWS[name]
