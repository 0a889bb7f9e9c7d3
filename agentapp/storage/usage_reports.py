"""What was spent, for admins: by day, tenant, agent and model from sums of each day; by user from the rows.

A month of a large installation has millions of rows in `usage_days`. So what all users of a tenant spent in a
day is added up when somebody looks, and stored: once for a day that is over, and again for one that is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, cast, func, select
from sqlalchemy.dialects import postgresql, sqlite

from agentapp.storage.db import Database
from agentapp.storage.models import Tenant, User
from agentapp.storage.operator_models import UsageDay, UsageTotal, UsageTotalDay
from agentapp.storage.statements import Statement
from agentapp.storage.usage_days import Used

# A turn counts for the day on which it began, and what was charged for it may be corrected later.
FINAL_AFTER = timedelta(days=1)
SUMMED_AGAIN_AFTER = timedelta(seconds=15)
_AMOUNTS = ("turns", "tokens", "cost_microusd")
_KEY = ("day", "tenant_id", "agent", "model")


@dataclass(frozen=True, slots=True)
class Month:
    """``first`` is its first day."""

    first: date

    @property
    def last(self) -> date:
        return (self.first + timedelta(days=31)).replace(day=1) - timedelta(days=1)

    @property
    def days(self) -> tuple[str, ...]:
        """As they are stored."""
        return tuple(self.first.replace(day=n + 1).isoformat() for n in range(self.last.day))


@dataclass(frozen=True, slots=True)
class UsageLine:
    """What was used on one day, by one user, or the like. The name is empty for users who were erased."""

    name: str
    id: str
    used: Used


class UsageReports:
    """``tenant_id`` is whose usage it is; None is everybody's."""

    def __init__(self, db: Database) -> None:
        self._db = db
        insert = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[db.engine.dialect.name]
        self._store_total = _replacing(insert(UsageTotal), _KEY, _AMOUNTS)
        self._store_day = _replacing(insert(UsageTotalDay), ("day",), ("summed_at",))

    def refresh(self, month: Month) -> None:
        """Add up the days of the month that are not added up yet, or were not over then."""
        now, first_day = self._db.clock.utc_now(), self.first_day()
        if first_day is None:
            return
        with self._db.reading() as db:
            of_month = select(UsageTotalDay.day, UsageTotalDay.summed_at).where(
                UsageTotalDay.day.in_(month.days)
            )
            summed = {row.day: row.summed_at for row in db.execute(of_month)}
        for day in month.days:
            if day >= first_day and _is_due(day, summed.get(day), now):
                self._add_up(day, now)

    def by(self, column: str, month: Month, tenant_id: str | None) -> Sequence[UsageLine]:
        """By "day", "agent" or "model", what cost most first."""
        group = getattr(UsageTotal, column)
        sums = _sums(UsageTotal)
        query = select(group, *sums).where(_of_month(UsageTotal, month, tenant_id)).group_by(group)
        with self._db.reading() as db:
            return [
                _line(name, "", *used) for name, *used in db.execute(query.order_by(sums[2].desc(), group))
            ]

    def by_tenant(self, month: Month, count: int) -> Sequence[UsageLine]:
        """Those that cost most."""
        sums = _sums(UsageTotal)
        totals = select(UsageTotal.tenant_id, *sums).where(_of_month(UsageTotal, month, None))
        order = sums[2].desc(), UsageTotal.tenant_id
        most = totals.group_by(UsageTotal.tenant_id).order_by(*order).limit(count)
        with self._db.reading() as db:
            found = db.execute(most).all()
            named = select(Tenant.id, Tenant.name).where(Tenant.id.in_([row[0] for row in found]))
            names = {row.id: row.name for row in db.execute(named)}
        return [_line(names.get(tenant_id), tenant_id, *used) for tenant_id, *used in found]

    def by_user(self, month: Month, tenant_id: str, count: int) -> Sequence[UsageLine]:
        """Those of a tenant that cost most. All users that were erased are one line."""
        sums = _sums(UsageDay)
        most = (
            select(UsageDay.user_id, *(each.label(name) for each, name in zip(sums, _AMOUNTS, strict=True)))
            .where(UsageDay.tenant_id == tenant_id, UsageDay.day.in_(month.days))
            .group_by(UsageDay.user_id)
            .order_by(sums[2].desc(), UsageDay.user_id)
            .limit(count)
            .subquery()
        )
        query = (
            select(User.name, most.c.user_id, *(most.c[name] for name in _AMOUNTS))
            .select_from(most)
            .outerjoin(User, User.id == most.c.user_id)
            .order_by(most.c.cost_microusd.desc(), most.c.user_id)
        )
        with self._db.reading() as db:
            return [_line(*row) for row in db.execute(query)]

    def users(self, month: Month, tenant_id: str | None, after: str, count: int) -> Sequence[UsageLine]:
        """All users by name, after that name, whether or not they have used anything."""
        own = UsageDay.tenant_id == User.tenant_id, UsageDay.user_id == User.id
        amounts = [
            select(each)
            .where(*own, UsageDay.day.between(month.days[0], month.days[-1]))
            .correlate(User)
            .scalar_subquery()
            for each in _sums(UsageDay)
        ]
        query = select(User.name, User.id, *amounts).where(User.name > after).order_by(User.name)
        if tenant_id is not None:
            query = query.where(User.tenant_id == tenant_id)
        with self._db.reading() as db:
            return [_line(*row) for row in db.execute(query.limit(count))]

    def tenants(self, month: Month, after: str, count: int) -> Sequence[UsageLine]:
        """All tenants by name, after that name."""
        own = UsageTotal.tenant_id == Tenant.id, UsageTotal.day.in_(month.days)
        amounts = [select(each).where(*own).correlate(Tenant).scalar_subquery() for each in _sums(UsageTotal)]
        query = select(Tenant.name, Tenant.id, *amounts).where(Tenant.name > after).order_by(Tenant.name)
        with self._db.reading() as db:
            return [_line(*row) for row in db.execute(query.limit(count))]

    def first_day(self) -> str | None:
        """The first one on which anything was used."""
        with self._db.reading() as db:
            return db.scalar(select(func.min(UsageDay.day)))

    def _add_up(self, day: str, now: datetime) -> None:
        groups = UsageDay.tenant_id, UsageDay.agent, UsageDay.model
        query = select(*groups, *_sums(UsageDay)).where(UsageDay.day == day).group_by(*groups)
        with self._db.reading() as db:
            found = db.execute(query).all()
        names = (*_KEY[1:], *_AMOUNTS)
        # In the same order in every worker, so that two of them never wait for each other's rows.
        totals = [{"day": day, **dict(zip(names, row, strict=True))} for row in sorted(map(tuple, found))]
        with self._db.transaction() as transaction:  # others wait for it: it only stores what was read before
            if totals:
                transaction.run_many(self._store_total, totals)
            transaction.run_later(self._store_day, {"day": day, "summed_at": now})


def _is_due(day: str, summed_at: datetime | None, now: datetime) -> bool:
    begins = datetime.fromisoformat(day).replace(tzinfo=UTC)
    if begins > now:
        return False
    if summed_at is None:
        return True
    is_final = summed_at >= begins + timedelta(days=1) + FINAL_AFTER
    return not is_final and now - summed_at >= SUMMED_AGAIN_AFTER


def _of_month(table: type[UsageTotal], month: Month, tenant_id: str | None) -> ColumnElement[bool]:
    if tenant_id is None:
        return table.day.between(month.days[0], month.days[-1])
    return and_(table.day.in_(month.days), table.tenant_id == tenant_id)


def _sums(table: type[UsageDay] | type[UsageTotal]) -> tuple[ColumnElement[int], ...]:
    """In the order of `Used`. On PostgreSQL a sum of big numbers is a decimal."""
    tokens = UsageDay.input_tokens + UsageDay.output_tokens if table is UsageDay else UsageTotal.tokens
    return tuple(
        cast(func.coalesce(func.sum(each), 0), BigInteger)
        for each in (table.turns, tokens, table.cost_microusd)
    )


def _line(name: str | None, id: str, turns: int, tokens: int, cost: int) -> UsageLine:
    return UsageLine(name or "", id, Used(turns, tokens, cost))


def _replacing(insert: Any, key: Sequence[str], amounts: Sequence[str]) -> Statement:
    new = {name: getattr(insert.excluded, name) for name in amounts}
    return Statement(insert.on_conflict_do_update(index_elements=key, set_=new), (*key, *amounts))
