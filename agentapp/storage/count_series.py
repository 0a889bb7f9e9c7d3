"""How often something happened, minute by minute, added up into longer stretches of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select

from agentapp.storage.db import Database
from agentapp.storage.minute_counts import name_of_all
from agentapp.storage.operator_models import MinuteCount


class Counted(NamedTuple):
    """What was counted under a name and a label. The label is empty if the name has none."""

    name: str
    label: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """``bars`` pieces of time, each of so many ``minutes``, from the minute ``first`` on (Unix time / 60)."""

    first: int
    minutes: int
    bars: int

    @property
    def end(self) -> int:
        return self.first + self.minutes * self.bars


class CountSeries:
    """Reads what every worker has counted: see `storage.minute_counts`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def over(
        self, stretch: Stretch, names: Sequence[str], tenant_id: str | None
    ) -> Mapping[Counted, Sequence[int]]:
        """One number for each bar. ``tenant_id`` is whose counts; None is those of all and of nobody."""
        count, wanted = MinuteCount, {name: name for name in names}
        if tenant_id is None:
            wanted, tenant_id = {name_of_all(name): name for name in names}, ""
        bar = (count.minute - stretch.first) // stretch.minutes
        query = (
            select(count.name, count.label, bar, func.sum(count.amount))
            .where(
                count.name.in_(wanted),
                count.tenant_id == tenant_id,
                count.minute >= stretch.first,
                count.minute < stretch.end,
            )
            .group_by(count.name, count.label, bar)
        )
        series: dict[Counted, list[int]] = defaultdict(lambda: [0] * stretch.bars)
        with self._db.reading() as db:
            for name, label, place, amount in db.execute(query):
                series[Counted(wanted[name], label)][int(place)] += int(amount)
        return dict(series)
