"""What was spent, by day, user, agent and model: each turn adds to it when it is settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite

from agentapp.events import TurnResult, Usage, UsagePart
from agentapp.isolation import UserScope
from agentapp.storage.db import Database
from agentapp.storage.operator_models import UsageDay
from agentapp.storage.statements import Statement

_KEY = ("tenant_id", "user_id", "day", "agent", "model")
_AMOUNTS = ("turns", "model_calls", "input_tokens", "output_tokens", "cost_microusd")
MAX_MODEL_CHARS, MAX_AGENT_CHARS = 128, 64


@dataclass(frozen=True, slots=True)
class Used:
    turns: int
    tokens: int
    cost_microusd: int


def _adding(insert: Any) -> Statement:
    new = insert(UsageDay)
    sums = {name: getattr(UsageDay, name) + getattr(new.excluded, name) for name in _AMOUNTS}
    return Statement(new.on_conflict_do_update(index_elements=_KEY, set_=sums), (*_KEY, *_AMOUNTS))


ADD_USAGE: Mapping[str, Statement] = MappingProxyType(
    {"sqlite": _adding(sqlite.insert), "postgresql": _adding(postgresql.insert)}
)


def day_of(begun: float | None, now: datetime) -> str:
    """The day (UTC) for which budgets count what a turn costs: the one on which it began."""
    return (now if begun is None else datetime.fromtimestamp(begun, UTC)).date().isoformat()


def usage_rows(result: TurnResult) -> list[tuple[int, UsagePart]]:
    """A part for each row. The turn itself is counted once: for the agent that answered, or was about to."""
    parts = list(result.parts) or [UsagePart(result.agent, "", Usage(), 0)]
    answering = max((n for n, part in enumerate(parts) if part.agent == result.agent), default=len(parts) - 1)
    return [(int(n == answering), part) for n, part in enumerate(parts)]


def usage_columns(turns: int, part: UsagePart) -> dict[str, object]:
    return {
        "agent": part.agent[:MAX_AGENT_CHARS],
        "model": part.model[:MAX_MODEL_CHARS],
        "turns": turns,
        "model_calls": part.usage.model_calls,
        "input_tokens": part.usage.input_tokens,
        "output_tokens": part.usage.output_tokens,
        "cost_microusd": part.charged_microusd,
    }


class OwnUsage:
    """What one user has used."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def by_day(self, scope: UserScope, first: date, last: date) -> Mapping[date, Used]:
        """Only the days on which there was something."""
        tokens = func.sum(UsageDay.input_tokens + UsageDay.output_tokens)
        sums = func.sum(UsageDay.turns), tokens, func.sum(UsageDay.cost_microusd)
        query = (
            select(UsageDay.day, *sums)
            .where(
                UsageDay.tenant_id == scope.tenant_id,
                UsageDay.user_id == scope.user_id,
                UsageDay.day.between(first.isoformat(), last.isoformat()),
            )
            .group_by(UsageDay.day)
        )
        with self._db.reading() as db:
            return {date.fromisoformat(day): Used(*map(int, used)) for day, *used in db.execute(query)}
