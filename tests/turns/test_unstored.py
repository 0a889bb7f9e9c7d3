"""Ends of turns that wait for the database: how many are kept, what is lost, and who is told to wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from agentapp.config import Settings
from agentapp.errors import StatementTimeout, StorageUnavailable, TurnInProgress
from agentapp.events import TurnResult
from agentapp.isolation import RequestScope, Scope
from agentapp.storage.models import LiveTurn
from agentapp.turns.ends import Settlement
from agentapp.turns.jobs import GiveUpLostTurns, InterruptAbandonedTurns, RenewLeases, StoreUnstoredEnds
from agentapp.turns.leases import Leases
from agentapp.turns.turn import Turn
from agentapp.turns.unstored import UnstoredEnds
from agentapp.web.parts import Parts
from tests.support.times import utc_now
from tests.support.turns import ELSEWHERE, begin, someone
from tests.support.users import without_limits

ANSWER = TurnResult("completed", "An answer", "triage")


@pytest.fixture
def parts(settings: Settings, make_app: Any) -> Parts:
    found: Parts = make_app(wanted=without_limits(settings)).extensions["agentapp"]
    return found


@pytest.fixture
def uma(parts: Parts) -> Scope:
    return someone(parts, "uma")


def chats(parts: Parts, uma: Scope, count: int) -> list[Scope]:
    with parts.binder.bound(uma):
        return [uma.within(parts.chats.create(uma).id) for _ in range(count)]


def waiting(parts: Parts, scope: Scope, result: TurnResult = ANSWER) -> Settlement:
    """A turn that has ended and is not stored."""
    turn: Turn = begin(parts.turns.kit, scope, "Hello")
    return turn._settlement(result)


def statuses(parts: Parts, *scopes: Scope) -> list[str]:
    found = []
    for scope in scopes:
        with parts.binder.bound(scope):
            found += [turn.status for turn in parts.chats.transcript(scope).turns]
    return found


def run(parts: Parts, *kinds: type[Any], now: float = 1_000.0) -> None:
    for kind in kinds:
        for scheduled in parts.turns.heartbeat.jobs:
            if isinstance(scheduled.job, kind):
                with parts.binder.bound(RequestScope(request_id="heartbeat")):
                    scheduled.job.run(now)


def test_the_oldest_end_makes_room_and_its_turn_is_interrupted_at_once(
    parts: Parts, uma: Scope, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = chats(parts, uma, 3)
    unstored = parts.turns.kit.unstored
    monkeypatch.setattr(unstored, "_max_ends", 2)
    ends = [waiting(parts, place) for place in places]
    assert [unstored.add(end) for end in ends] == [True] * 3
    assert unstored.all() == ends[1:]
    (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert told.__dict__["turn_id"] == ends[0].turn.id
    parts.turns.kit.leases.distrust()  # as after an outage; this one is known to be nobody's
    run(parts, GiveUpLostTurns, InterruptAbandonedTurns)
    assert statuses(parts, *places) == ["interrupted", "running", "running"]
    run(parts, StoreUnstoredEnds)
    assert statuses(parts, *places) == ["interrupted", "completed", "completed"]
    assert not len(unstored)


def test_no_more_bytes_are_kept_than_that(parts: Parts, uma: Scope) -> None:
    kit = parts.turns.kit
    ends = [waiting(parts, place) for place in chats(parts, uma, 3)]
    small, large, huge = (
        kit.settlement(replace(end.turn, result=replace(ANSWER, reply="x" * size)))
        for end, size in zip(ends, (500, 1_900, 2_001), strict=True)
    )
    unstored = UnstoredEnds(max_bytes=2_000)
    assert [unstored.add(each) for each in (small, huge)] == [True, False]
    assert (unstored.all(), unstored.lost()) == ([small], {huge.turn.id})
    assert unstored.add(large)
    assert (unstored.all(), unstored.lost()) == ([large], {huge.turn.id, small.turn.id})
    unstored.remove(large.turn.id)
    assert unstored.add(small)
    assert unstored.all() == [small], "what was taken out makes room again"
    for each in (small, large, huge):
        assert each.store()


def test_a_lease_is_renewed_for_what_waits_to_be_stored_and_for_nothing_else(
    parts: Parts, uma: Scope
) -> None:
    waits, lost = (waiting(parts, place) for place in chats(parts, uma, 2))
    unstored = parts.turns.kit.unstored
    unstored.add(waits)
    past = utc_now() - timedelta(hours=1)
    with parts.db.writing() as db:
        db.execute(update(LiveTurn).values(lease_until=past))
    run(parts, RenewLeases)
    with parts.db.writing() as db:
        renewed = set(db.scalars(select(LiveTurn.turn_id).where(LiveTurn.lease_until > utc_now())))
    assert renewed == {waits.turn.id}
    length = parts.turns.kit.leases.current().length.total_seconds()
    for now in (1_000.0, 1_000.0 + length):
        run(parts, GiveUpLostTurns, InterruptAbandonedTurns, now=now)
    assert statuses(parts, waits.turn.scope, lost.turn.scope) == ["running", "interrupted"]
    run(parts, StoreUnstoredEnds)
    assert statuses(parts, waits.turn.scope) == ["completed"]


@pytest.mark.parametrize(
    ("error", "stored"), [(StatementTimeout("slow"), 2), (StorageUnavailable("away"), 0), (ValueError(), 2)]
)
def test_an_end_that_fails_does_not_keep_the_others_from_being_stored(
    parts: Parts, uma: Scope, monkeypatch: pytest.MonkeyPatch, error: Exception, stored: int
) -> None:
    """If the database is away, nobody else is tried; but the others come first in the next beat."""
    places = chats(parts, uma, 3)
    ends = [waiting(parts, place) for place in places]
    for end in ends:
        parts.turns.kit.unstored.add(end)
    real = Settlement.store

    def fails(self: Settlement) -> bool:
        if self is ends[0]:
            raise error
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Settlement, "store", fails)
        run(parts, StoreUnstoredEnds)
        assert statuses(parts, *places).count("completed") == stored
        run(parts, StoreUnstoredEnds)
        assert statuses(parts, *places) == ["running", "completed", "completed"]
    run(parts, StoreUnstoredEnds, GiveUpLostTurns, InterruptAbandonedTurns)
    last = "interrupted" if isinstance(error, ValueError) else "completed"
    assert statuses(parts, *places) == [last, "completed", "completed"]


def test_after_an_outage_a_message_does_not_take_another_machines_worker_for_dead(
    parts: Parts, uma: Scope
) -> None:
    """It could not renew its leases. When it had time to, they are judged again."""
    end = waiting(parts, uma)
    with parts.db.writing() as db:
        past = utc_now() - timedelta(seconds=1)
        db.execute(update(LiveTurn).values(worker=ELSEWHERE, lease_until=past))
    leases = parts.turns.kit.leases
    leases.distrust()
    with pytest.raises(TurnInProgress):
        begin(parts.turns.kit, uma, "Again")
    leases._trusted_from = 0.0
    assert begin(parts.turns.kit, uma, "Again")._settlement(ANSWER).store()
    assert not end.store()
    assert statuses(parts, uma) == ["interrupted", "completed"]


def test_a_beat_as_long_as_an_outage_counts_as_one() -> None:
    leases = Leases(timedelta(seconds=12))
    leases.distrust_if_late(5.9)
    assert leases.are_trusted
    leases.distrust_if_late(6.0)
    assert not leases.are_trusted
