"""What a clean-up removes: each kind of rows that go by age, and how they are found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, select, tuple_
from sqlalchemy.orm import DeclarativeBase

from agentapp.isolation import UserScope
from agentapp.retention.clean_up import MOST_ROWS, Pace, Swept
from agentapp.retention.keeping import ALERTS_KEPT, CHARGES_KEPT, MINUTE_COUNTS_KEPT, WORKERS_KEPT
from agentapp.storage.chat_removal import ChatRemoval
from agentapp.storage.db import Database
from agentapp.storage.models import ChargedTurn, LiveTurn, Login, SetupLink, Turn, TurnEvents, User
from agentapp.storage.operator_models import AlertRow, AuditRow, MinuteCount, WorkerRow
from agentapp.storage.retention import RetentionStore

MOST_CHATS = 50  # of one transaction; fewer if they are long


class SweepChats:
    """Of tenants whose chats are not kept for ever. Those that are pinned or have a running turn stay."""

    kind = "chats"

    def __init__(self, keeping: RetentionStore, chats: ChatRemoval) -> None:
        self._keeping, self._chats = keeping, chats

    def sweep(self, now: datetime, *, dry_run: bool) -> Iterator[Swept]:
        for tenant in self._keeping.all_tenants():
            before = tenant.chats.before(now)
            if before is None:
                continue
            if dry_run:
                yield Swept(self.kind, tenant.tenant_id, self._chats.count_old(tenant.tenant_id, before))
            else:
                yield from self._remove(tenant.tenant_id, before)

    def _remove(self, tenant_id: str, before: datetime) -> Iterator[Swept]:
        pace = Pace(MOST_CHATS)
        for user_id in self._chats.users_with_old_chats(tenant_id, before):
            scope = UserScope(request_id="clean-up", tenant_id=tenant_id, user_id=user_id)
            while True:
                began = time.monotonic()
                removed = self._chats.remove_quiet(scope, pace.count, before=before)
                if not removed:
                    break
                pace.took(time.monotonic() - began)
                yield Swept(self.kind, tenant_id, removed)


class SweepRows:
    """Rows of one table that a condition finds."""

    def __init__(
        self,
        db: Database,
        kind: str,
        table: type[DeclarativeBase],
        conditions: Callable[[datetime], Sequence[ColumnElement[bool]]],
    ) -> None:
        self._db, self.kind, self._table, self._conditions = db, kind, table, conditions

    def sweep(self, now: datetime, *, dry_run: bool) -> Iterator[Swept]:
        for condition in self._conditions(now):
            yield from swept_rows(
                self._db, Swept(self.kind, None, 0), self._table, condition, dry_run=dry_run
            )


class SweepAuditLog:
    kind = "audit rows"

    def __init__(self, db: Database, keeping: RetentionStore) -> None:
        self._db, self._keeping = db, keeping

    def sweep(self, now: datetime, *, dry_run: bool) -> Iterator[Swept]:
        of_tenants = [(each.tenant_id, each.audit.before(now)) for each in self._keeping.all_tenants()]
        of_none = None, self._keeping.of_nobody.before(now)
        for tenant_id, before in (*of_tenants, of_none):
            if before is not None:
                old = and_(AuditRow.tenant_id == tenant_id, AuditRow.at < before)
                swept = Swept(self.kind, tenant_id, 0)
                yield from swept_rows(self._db, swept, AuditRow, old, dry_run=dry_run)


def swept_rows(
    db: Database, swept: Swept, table: type[DeclarativeBase], condition: ColumnElement[bool], *, dry_run: bool
) -> Iterator[Swept]:
    """They are found by an index each time, as those that were found before are gone."""
    if dry_run:
        with db.reading() as reader:
            count = reader.scalar(select(func.count()).select_from(table).where(condition)) or 0
        db.release()
        yield swept._replace(rows=count)
        return
    while True:
        count = _remove(db, table, condition)
        yield swept._replace(rows=count)
        if count < MOST_ROWS:
            return


def _remove(db: Database, table: type[DeclarativeBase], condition: ColumnElement[bool]) -> int:
    key = list(table.__table__.primary_key)
    found: Select[Any] = select(*key).where(condition).limit(MOST_ROWS)
    found = found.with_for_update(skip_locked=True)
    with db.writing() as writer:
        rows = [tuple(row) for row in writer.execute(found)]
        if rows:
            named = key[0].in_([row[0] for row in rows]) if len(key) == 1 else tuple_(*key).in_(rows)
            writer.execute(delete(table).where(named, condition))
    return len(rows)


def simple_sweeps(db: Database) -> tuple[SweepRows, ...]:
    """Those that are the same for all tenants."""

    def minute_counts(now: datetime) -> list[ColumnElement[bool]]:
        """By name, because the index begins with it."""
        oldest = int((now - MINUTE_COUNTS_KEPT).timestamp() // 60)
        return [and_(MinuteCount.name == name, MinuteCount.minute < oldest) for name in _names_counted(db)]

    return (
        SweepRows(db, "ended logins", Login, lambda now: [Login.expires_at < now]),
        SweepRows(db, "events of ended turns", TurnEvents, lambda now: [_has_ended(TurnEvents)]),
        SweepRows(db, "leases of ended turns", LiveTurn, lambda now: [_has_ended(LiveTurn)]),
        SweepRows(
            db, "charges of ended turns", ChargedTurn, lambda now: [_is_old_charge(now - CHARGES_KEPT)]
        ),
        SweepRows(db, "acknowledged alerts", AlertRow, lambda now: [_is_old_alert(now - ALERTS_KEPT)]),
        SweepRows(db, "counts by minute", MinuteCount, minute_counts),
        SweepRows(
            db, "workers that are gone", WorkerRow, lambda now: [WorkerRow.seen_at < now - WORKERS_KEPT]
        ),
        SweepRows(db, "set-up links", SetupLink, lambda now: [_is_set_up(now)]),
    )


def _names_counted(db: Database) -> Iterator[str]:
    """From one to the next in the index: there are few names and many rows of each."""
    found: str | None = ""
    while found is not None:
        with db.reading() as reader:
            found = reader.scalar(select(func.min(MinuteCount.name)).where(MinuteCount.name > found))
        db.release()
        if found is not None:
            yield found


def _has_ended(table: type[LiveTurn] | type[TurnEvents]) -> ColumnElement[bool]:
    """Its turn is there and does not run. There is none such unless the database was damaged or changed by
    hand: the row goes with the end of its turn.
    """
    ended = select(Turn.id).where(
        Turn.id == table.turn_id,
        Turn.tenant_id == table.tenant_id,
        Turn.user_id == table.user_id,
        Turn.status != "running",
    )
    return ended.exists()


def _is_old_charge(before: datetime) -> ColumnElement[bool]:
    mine = select(User.id).where(ChargedTurn.tenant_id == User.tenant_id, ChargedTurn.user_id == User.id)
    return and_(ChargedTurn.charged_at < before, mine.exists())


def _is_old_alert(before: datetime) -> ColumnElement[bool]:
    return and_(AlertRow.last_at < before, AlertRow.acknowledged_at < before)


def _is_set_up(now: datetime) -> ColumnElement[bool]:
    """A link is for the first account. A new one may be made at this very moment, for nobody yet."""
    return and_(SetupLink.created_at < now - timedelta(minutes=1), select(User.id).exists())
