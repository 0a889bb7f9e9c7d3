"""For how long things are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

KEEP_EVERYTHING = 0  # as a tenant's own number of days
MOST_DAYS = 36_500
ALERTS_KEPT = timedelta(days=90)  # after they were acknowledged and came again no more
MINUTE_COUNTS_KEPT = timedelta(days=35)  # a month, for the plots, and some days to look back
WORKERS_KEPT = timedelta(days=1)  # after they were heard of last
CHARGES_KEPT = timedelta(days=1)  # a worker that was taken for dead for so long charges no more
# A clock may be put back over midnight. So long after it, nothing that a cell of a day has counted counts.
IDLE_CELLS_KEPT = timedelta(days=3)


@dataclass(frozen=True, slots=True)
class Keeping:
    """Days. What the settings say, and what a tenant has of its own in its place. None is for ever."""

    setting: int | None
    own: int | None = None

    @property
    def days(self) -> int | None:
        if self.own is None:
            return self.setting
        return self.own or None

    def before(self, now: datetime) -> datetime | None:
        """What was used last before that moment goes; None if nothing does."""
        return None if self.days is None else now - timedelta(days=self.days)


@dataclass(frozen=True, slots=True)
class TenantKeeping:
    """How long one tenant's chats and audit rows are kept."""

    tenant_id: str
    name: str
    chats: Keeping
    audit: Keeping
