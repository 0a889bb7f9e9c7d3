"""Alerts in SQL: raised ones are added to those that are open, and admins look at and acknowledge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Insert, Select, and_, bindparam, case, func, literal, or_, select, true
from sqlalchemy import tuple_ as row_of
from sqlalchemy.dialects import postgresql, sqlite

from agentapp.errors import NotFound
from agentapp.isolation import UserScope, new_id
from agentapp.storage.audit_log import AuditEntry, add_entry
from agentapp.storage.db import Database
from agentapp.storage.models import User
from agentapp.storage.operator_models import AlertRow
from agentapp.storage.statements import Statement
from agentapp.telemetry.alerts import SEVERITIES, Alert, StoredAlert

# One that is open and raised again is sent to the webhook again, but not more often than this.
SENT_AGAIN_AFTER = timedelta(hours=1)
MOST_COUNTED = 99  # on the badge; more are "99+"
IS_OPEN = AlertRow.acknowledged_at.is_(None)
COLUMNS = tuple(AlertRow.__table__.columns)


def _adding(insert: Insert) -> Statement:
    new: sqlite.Insert | postgresql.Insert = insert  # type: ignore[assignment]
    added = new.excluded
    is_sent_again = and_(
        added.next_delivery_at.is_not(None),
        AlertRow.next_delivery_at.is_(None),
        or_(AlertRow.delivery_since.is_(None), AlertRow.delivery_since <= bindparam("sent_before")),
    )
    sent_again = {
        name: case((is_sent_again, added[name]), else_=getattr(AlertRow, name))
        for name in ("next_delivery_at", "delivery_since", "delivery_attempts", "delivery_problem")
    }
    counted_up = {
        "count": AlertRow.count + added.count,
        # Of several tenants, or of one and none: then it is for operators alone.
        "tenant_id": case((AlertRow.tenant_id == added.tenant_id, AlertRow.tenant_id), else_=None),
        **{name: added[name] for name in ("detail", "request_id", "last_at")},
        **sent_again,
    }
    kept = new.on_conflict_do_update(index_elements=["kind", "subject"], index_where=IS_OPEN, set_=counted_up)
    return Statement(kept, tuple(column.name for column in COLUMNS))


class ShownAlert(NamedTuple):
    """``acknowledged_by`` is the name of that person, if it may be shown."""

    alert: StoredAlert
    acknowledged_by: str | None


class AlertStore:
    """``delivers`` is whether there is a webhook, to which new alerts are to be sent."""

    def __init__(self, db: Database, *, delivers: bool = False) -> None:
        self._db, self._delivers = db, delivers
        insert = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[db.engine.dialect.name]
        self._add = _adding(insert(AlertRow))

    def add(self, alerts: Sequence[Alert]) -> None:
        """In the same order in every worker, so that two of them never wait for each other's rows."""
        now = self._db.clock.utc_now()
        rows = [
            self._values(alert, now) for alert in sorted(alerts, key=lambda each: (each.kind, each.subject))
        ]
        with self._db.transaction() as db:
            db.run_many(self._add, rows)

    def _values(self, alert: Alert, now: datetime) -> Mapping[str, object]:
        due = now if self._delivers else None
        return {
            "id": new_id(),
            "kind": alert.kind,
            "severity": alert.severity,
            "tenant_id": alert.tenant_id,
            "subject": alert.subject[:160],
            "detail": alert.detail,
            "request_id": alert.request_id[:64],
            "count": alert.count,
            "first_at": now,
            "last_at": now,
            "acknowledged_at": None,
            "acknowledged_by": None,
            "delivered_at": None,
            "delivery_attempts": 0,
            "delivery_since": due,
            "delivery_problem": "",
            "next_delivery_at": due,
            "sent_before": now - SENT_AGAIN_AFTER,
        }

    def open_count(self, tenant_id: str | None) -> int:
        """Not more than one over `MOST_COUNTED`, however many there are."""
        some = select(AlertRow.id).where(IS_OPEN, _of(tenant_id)).limit(MOST_COUNTED + 1).subquery()
        with self._db.reading() as db:
            return db.scalar(select(func.count()).select_from(some)) or 0

    def open_by_kind(self) -> Mapping[str, int]:
        """Of every kind, also if there is none."""
        query = select(AlertRow.kind, func.count()).where(IS_OPEN).group_by(AlertRow.kind)
        with self._db.reading() as db:
            return {**dict.fromkeys(SEVERITIES, 0), **{row[0]: row[1] for row in db.execute(query)}}

    def open(
        self, tenant_id: str | None, before: tuple[datetime, str] | None, count: int
    ) -> list[ShownAlert]:
        """Those that nobody has acknowledged, beginning with the one that was raised last. ``before`` is the
        time and the id of the last one that was seen.
        """
        return self._listed(and_(IS_OPEN, _of(tenant_id)), AlertRow.last_at, before, count, tenant_id)

    def acknowledged(
        self, tenant_id: str | None, before: tuple[datetime, str] | None, count: int
    ) -> list[ShownAlert]:
        """The others, beginning with the one that was acknowledged last."""
        which = and_(AlertRow.acknowledged_at.is_not(None), _of(tenant_id))
        return self._listed(which, AlertRow.acknowledged_at, before, count, tenant_id)

    def acknowledge(self, alert_id: str, tenant_id: str | None, by: UserScope) -> None:
        """Somebody has looked at it. It is then not sent any more. A second time changes nothing."""
        mine = select(AlertRow).where(AlertRow.id == alert_id, _of(tenant_id)).with_for_update()
        with self._db.writing() as db:
            row = db.scalar(mine)
            if row is None:
                raise NotFound("There is no such alert.")
            if row.acknowledged_at is None:
                row.acknowledged_at, row.acknowledged_by = self._db.clock.utc_now(), by.user_id
                row.next_delivery_at = None
                about = {"kind": row.kind, "about": row.subject, "count": row.count}
                entry = AuditEntry.of(by, "alert-acknowledged", f"alert:{row.id}", **about)
                add_entry(db, replace(entry, tenant_id=row.tenant_id))

    def _listed(
        self,
        which: ColumnElement[bool],
        time: Any,
        before: tuple[datetime, str] | None,
        count: int,
        tenant_id: str | None,
    ) -> list[ShownAlert]:
        name = select(User.name).where(User.id == AlertRow.acknowledged_by)
        if tenant_id is not None:  # an admin does not learn who the operators are
            name = name.where(User.tenant_id == tenant_id)
        query = _before(select(*COLUMNS, name.scalar_subquery()).where(which), time, before)
        with self._db.reading() as db:
            found = db.execute(query.order_by(time.desc(), AlertRow.id.desc()).limit(count))
            return [ShownAlert(StoredAlert(*row[:-1]), row[-1]) for row in found]


def _before(query: Select[Any], time: Any, last: tuple[datetime, str] | None) -> Select[Any]:
    if last is None:
        return query
    return query.where(row_of(time, AlertRow.id) < row_of(literal(last[0], time.type), last[1]))


def _of(tenant_id: str | None) -> ColumnElement[bool]:
    return true() if tenant_id is None else AlertRow.tenant_id == tenant_id
