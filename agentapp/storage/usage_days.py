"""What was spent, by day, user, agent and model: each turn adds to it when it is settled."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite

from agentapp.events import TurnResult, Usage, UsagePart
from agentapp.storage.operator_models import UsageDay
from agentapp.storage.statements import Statement

_KEY = ("tenant_id", "user_id", "day", "agent", "model")
_AMOUNTS = ("turns", "model_calls", "input_tokens", "output_tokens", "cost_microusd")
MAX_MODEL_CHARS, MAX_AGENT_CHARS = 128, 64


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
