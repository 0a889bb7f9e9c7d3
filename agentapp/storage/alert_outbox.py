"""Alerts on their way to the webhook: which is due, who sends it, and how that ended."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, case, literal, select, update

from agentapp.storage.alerts import COLUMNS, IS_OPEN
from agentapp.storage.db import Database
from agentapp.storage.operator_models import AlertRow
from agentapp.storage.statements import Statement
from agentapp.telemetry.alerts import StoredAlert

# Far longer than a try can take. If its worker dies meanwhile, another one tries again after that.
CLAIM_LENGTH = timedelta(seconds=60)
MAX_PROBLEM_CHARS = 160

_IS_DUE = AlertRow.next_delivery_at <= bindparam("now")
ANY_DUE = Statement(select(AlertRow.id).where(_IS_DUE).limit(1))


class AlertOutbox:
    """A `telemetry.delivery.Outbox`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        db.compile((ANY_DUE,))

    def has_due(self) -> bool:
        return bool(self._db.look(ANY_DUE, {"now": self._db.clock.utc_now()}))

    def claim(self) -> StoredAlert | None:
        """One that is due, as it is with this try counted. No other worker gets it until that try is over."""
        now = self._db.clock.utc_now()
        due = select(AlertRow.id).where(_IS_DUE).order_by(AlertRow.next_delivery_at).limit(1)
        claimed = (
            update(AlertRow)
            .where(AlertRow.id == due.with_for_update(skip_locked=True).scalar_subquery())
            .values(next_delivery_at=now + CLAIM_LENGTH, delivery_attempts=AlertRow.delivery_attempts + 1)
            .returning(*COLUMNS)
        )
        with self._db.writing() as db:
            row = db.execute(claimed, {"now": now}).first()
            return None if row is None else StoredAlert(*row)

    def delivered(self, alert: StoredAlert) -> None:
        self._end(alert, delivered_at=self._db.clock.utc_now(), delivery_problem="", next_delivery_at=None)

    def failed(self, alert: StoredAlert, problem: str, next_at: datetime | None) -> None:
        """It is tried again then, or never; never if it was acknowledged meanwhile."""
        again = case((IS_OPEN, literal(next_at, AlertRow.next_delivery_at.type)), else_=None)
        self._end(alert, delivery_problem=problem[:MAX_PROBLEM_CHARS], next_delivery_at=again)

    def _end(self, alert: StoredAlert, **values: Any) -> None:
        """Unless another worker has taken this try for lost and has begun the next one."""
        mine = AlertRow.id == alert.id, AlertRow.delivery_attempts == alert.delivery_attempts
        with self._db.writing() as db:
            db.execute(update(AlertRow).where(*mine).values(**values))
