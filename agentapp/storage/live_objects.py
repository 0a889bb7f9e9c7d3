"""How many of what there are now, in all workers together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import select

from agentapp.storage.db import Database
from agentapp.storage.operator_models import WorkerRow


class LiveObjects:
    """What all workers have told of themselves within the last ``seconds``."""

    def __init__(self, db: Database, seconds: float) -> None:
        self._db, self._lately = db, timedelta(seconds=seconds)

    def now(self) -> Mapping[str, float]:
        """Sums over the workers. Empty if none has told anything lately."""
        query = select(WorkerRow.numbers).where(WorkerRow.seen_at >= self._db.clock.utc_now() - self._lately)
        sums: Counter[str] = Counter()
        with self._db.reading() as db:
            for numbers in db.scalars(query):
                sums.update(numbers)
        return dict(sums)
