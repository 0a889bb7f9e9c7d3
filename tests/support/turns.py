"""Turns begun directly, without a request; and heartbeats that do not let a test wait."""

from __future__ import annotations

from typing import Any

import pytest

from agentapp.events import TurnResult
from agentapp.isolation import Scope, UserScope
from agentapp.turns.kit import TurnKit
from agentapp.turns.turn import Turn
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts

ELSEWHERE = "another-machine.1.1.worker"  # a worker of which nothing is known but its leases


def begin(kit: TurnKit, scope: Scope, text: str | None, key: str | None = None, **place: Any) -> Any:
    """A `Turn`, or the `RepeatedMessage` that it is."""
    return Turn.begin(kit, scope, NewMessage(text, key, **place))


def store_end(turn: Turn, result: TurnResult) -> bool:
    """As if it had been played and had ended like this."""
    return turn._settlement(result).store()


def hurry(monkeypatch: pytest.MonkeyPatch, *workers: Parts, seconds: float = 0.05) -> None:
    """Their heartbeats never sleep for longer than that, and every job is due each time."""
    monkeypatch.setattr("agentapp.turns.heartbeat.TICK_SECONDS", seconds)
    monkeypatch.setattr("agentapp.turns.heartbeat.IDLE_SECONDS", seconds)
    for parts in workers:
        for scheduled in parts.turns.heartbeat.jobs:
            scheduled.every = min(scheduled.every, seconds)


def someone(parts: Parts, name: str) -> Scope:
    """A new user with an empty chat."""
    user = parts.accounts.add(name, "a long enough password")
    mine = UserScope(request_id=f"r-{name}", tenant_id=user.tenant_id, user_id=user.id)
    return mine.within(parts.chats.create(mine).id)
