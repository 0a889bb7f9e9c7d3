"""Counts by the minute: each worker adds what it has counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import Insert, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

from agentapp.storage.db import Database
from agentapp.storage.operator_models import MinuteCount
from agentapp.storage.statements import Statement
from agentapp.telemetry.measurements import Measurements, isolation_score
from agentapp.telemetry.minutes import MinuteKey

SCORE_MINUTES = 60


def _adding(insert: Insert) -> Statement:
    new: sqlite.Insert | postgresql.Insert = insert  # type: ignore[assignment]
    kept = new.on_conflict_do_update(
        index_elements=["name", "tenant_id", "minute", "label"],
        set_={"amount": MinuteCount.amount + new.excluded.amount},
    )
    return Statement(kept, ("name", "tenant_id", "minute", "label", "amount"))


_SINCE = (
    select(MinuteCount.name, func.sum(MinuteCount.amount))
    .where(
        MinuteCount.name.in_(("isolation_requests", "isolation_violating")),
        MinuteCount.minute >= bindparam("since"),
    )
    .group_by(MinuteCount.name)
)


class MinuteCountStore:
    def __init__(self, db: Database) -> None:
        self._db = db
        insert = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[db.engine.dialect.name]
        self._add = _adding(insert(MinuteCount))

    def add(self, counts: Mapping[MinuteKey, int]) -> None:
        """In the same order in every worker, so that two of them never wait for each other's rows."""
        every = {**counts, **_of_all(counts)}
        rows = [{**key._asdict(), "amount": amount} for key, amount in sorted(every.items())]
        with self._db.transaction() as db:
            db.run_many(self._add, rows)


def name_of_all(name: str) -> str:
    """Under which name the sums over all tenants are."""
    return f"all:{name}"


def _of_all(counts: Mapping[MinuteKey, int]) -> Mapping[MinuteKey, int]:
    sums: Counter[MinuteKey] = Counter()
    for key, amount in counts.items():
        sums[key._replace(name=name_of_all(key.name), tenant_id="")] += amount
    return sums


class IsolationScore:
    """The share of requests in which all checks of isolation have held, in all workers, in the last hour."""

    def __init__(self, db: Database, telemetry: Measurements) -> None:
        self._db, self._telemetry = db, telemetry

    def now(self, tenant_id: str | None = None) -> float | None:
        """Of one tenant's requests, or of everybody's. None if no request was checked."""
        requests, violating = self._telemetry.unstored(tenant_id)
        query = _SINCE if tenant_id is None else _SINCE.where(MinuteCount.tenant_id == tenant_id)
        since = int(self._db.clock.now() // 60) - SCORE_MINUTES + 1
        with self._db.reading() as db:
            found = {name: int(amount) for name, amount in db.execute(query, {"since": since})}
        requests += found.get("isolation_requests", 0)
        return isolation_score(requests, violating + found.get("isolation_violating", 0))
