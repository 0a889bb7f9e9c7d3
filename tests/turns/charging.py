"""Turns of models that are silent in the middle of an answer, and what was charged for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import select, update

from agentapp.agents.drivers.shared import Deadlines
from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.prices import Prices
from agentapp.agents.provider import ModelCall, Reply
from agentapp.events import Usage
from agentapp.guardrails.admission import TurnCells
from agentapp.isolation import Scope
from agentapp.storage.models import LiveTurn
from agentapp.storage.operator_models import UsageDay
from agentapp.turns.abandoned import interrupt_abandoned
from agentapp.turns.kit import TurnKit
from agentapp.turns.turn import Turn
from agentapp.web.parts import Parts
from tests.support.scripted import Scripted
from tests.support.times import utc_now
from tests.support.turns import ELSEWHERE

OF_INPUT = 3_000  # millionths of a dollar for a token in; a token out costs one


def answered_by(parts: Parts, *answers: Any, **deadlines: float) -> TurnKit:
    driver = ThreadedDriver(Scripted(*answers), parts.binder, Deadlines(**deadlines))
    return replace(parts.turns.kit, driver=driver, prices=Prices([("m", OF_INPUT, 1.0)]), model="m")


def charged(parts: Parts, scope: Scope) -> tuple[int, int]:
    """Tokens in and out that the user and the tenant were charged. Nothing may be reserved any more."""
    guardrails = parts.turns.kit.guardrails
    with parts.binder.bound(scope):
        cells = TurnCells(*guardrails.registry.look(guardrails.keys(scope)))
    now = guardrails.clock()
    assert [cell.budget.holds.amount(now) for cell in cells[:3]] == [0, 0, 0]
    assert cells.user.budget.used(now) == cells.tenant.budget.used(now)
    assert sum(row.cost_microusd for row in usage_days(parts, scope)) == cells.tenant.budget.used(now)
    return divmod(cells.tenant.budget.used(now), OF_INPUT)


def usage_days(parts: Parts, scope: Scope) -> list[UsageDay]:
    """What is told of the user's usage by day; it is what the budgets were charged."""
    with parts.db.writing() as db:
        of_user = select(UsageDay).where(UsageDay.user_id == scope.user_id)
        found = list(db.scalars(of_user.order_by(UsageDay.agent, UsageDay.model)))
        db.expunge_all()
    return found


def says(text: str, silence: threading.Event) -> Callable[[ModelCall], Iterator[Any]]:
    """A model that receives the request, says this and then nothing."""

    def answer(call: ModelCall) -> Iterator[Any]:
        call.meter.sent()
        yield text
        silence.wait(20)
        yield Reply(text, usage=Usage(1, 1, 1))

    return answer


def play_until(turn: Turn, seen: Callable[[], bool]) -> None:
    while not seen():
        next(turn)


def lose(parts: Parts, turn: Turn) -> None:
    """As if the turn's worker had died a while ago, and another one came to it."""
    with parts.db.writing() as db:
        past = utc_now() - timedelta(seconds=1)
        of_another = {"worker": ELSEWHERE, "lease_until": past}
        db.execute(update(LiveTurn).where(LiveTurn.turn_id == turn.id).values(**of_another))
    kit = parts.turns.kit
    interrupt_abandoned(kit.store, kit.ends, turn.scope, kit.leases)


def store_events(parts: Parts, turn: Turn, written: int = 0) -> int:
    """As the heartbeat does. How many are stored then."""
    new = turn.unwritten(written)
    assert new is not None
    parts.turns.live.write([new], parts.turns.kit.leases.current().worker)
    return written + len(new.events)


def first_call(turn: Turn) -> int:
    return turn._started.reservation.first_call_tokens
