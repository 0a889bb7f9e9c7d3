"""What must be told is told: each condition is made, and its alert is in the database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import select, text

from agentapp.agents.shipped import team
from agentapp.agents.team import Crew, Team
from agentapp.config import Settings
from agentapp.errors import StorageUnavailable
from agentapp.isolation import Scope
from agentapp.storage.alerts import AlertStore
from agentapp.storage.operator_models import WorkerRow
from agentapp.telemetry.alerts import MAX_PENDING, Alert, PendingAlerts
from agentapp.telemetry.conditions import RAISED_AGAIN_SECONDS, FindConditions
from agentapp.turns.heartbeat import ScheduledJob
from agentapp.web.parts import Parts
from tests.support.alerts import beat, open_alerts
from tests.support.databases import only_sqlite
from tests.support.times import utc_now
from tests.support.turns import ELSEWHERE, begin, someone
from tests.turns.charging import answered_by


@pytest.fixture
def workers(database_url: str, settings: Settings, make_app: Callable[..., Flask]) -> tuple[Parts, Parts]:
    wanted = replace(settings, database_url=database_url)
    one, two = (make_app(wanted=wanted).extensions["agentapp"] for _ in range(2))
    return one, two


@pytest.fixture
def one(workers: tuple[Parts, Parts]) -> Parts:
    return workers[0]


@pytest.fixture
def uma(one: Parts) -> Scope:
    return someone(one, "uma")


def change(parts: Parts, statement: str, **values: object) -> None:
    with parts.db.writing() as db:
        db.execute(text(statement), values)


@pytest.mark.violates
def test_a_scope_that_was_left_bound_is_a_leak_and_takes_the_score_below_one(one: Parts, uma: Scope) -> None:
    one.binder.bound(uma).__enter__()
    one.binder.sweep()
    beat(one)
    found = open_alerts(one)
    assert found.keys() == {"cross-request-leak", "isolation-score"}
    leak = found["cross-request-leak"]
    assert (leak.severity, leak.subject, leak.request_id) == ("critical", "left-bound", uma.request_id)


class SameCrewAgain(Team):
    """A team of somebody's own that saves itself the work of making agents."""

    def build(self, scope: Scope, report: Any = None) -> Crew:
        kept = self.__dict__.setdefault("kept", [])
        if not kept:
            kept.append(super().build(scope, report))
        crew: Crew = kept[0]
        return crew


@pytest.mark.violates
@only_sqlite
def test_agents_that_are_used_for_a_second_turn_are_told_of(one: Parts, uma: Scope) -> None:
    kit = replace(answered_by(one, "one", "two"), team=SameCrewAgain(team.front, team.specialists))
    for message in ("Hello", "Hello again"):
        begin(kit, uma, message).finish()
    beat(one)
    assert open_alerts(one)["instance-reused"].severity == "error"


@only_sqlite
def test_agents_that_take_longer_than_five_seconds_to_forget_are_told_of(
    one: Parts, uma: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = answered_by(one, "Hello to you")
    reset, seconds = Crew.reset, time.perf_counter
    slept = [0.0]

    def slow(crew: Crew) -> None:
        reset(crew)
        slept[0] += 5.5

    monkeypatch.setattr(Crew, "reset", slow)
    monkeypatch.setattr("agentapp.turns.kit.time.perf_counter", lambda: seconds() + slept[0])
    begin(kit, uma, "Hello").finish()
    beat(one)
    assert open_alerts(one)["reset-slow"].detail == "the agents of a turn took 5.5 s to forget it"


@pytest.mark.violates
def test_a_score_below_one_is_told_of_even_if_the_worker_that_saw_it_is_gone(
    workers: tuple[Parts, Parts],
) -> None:
    one, two = workers
    for _ in range(9):
        one.telemetry.request_checked()
    one.telemetry.violation("left-bound", "as a test", "r")
    one.telemetry.request_checked()
    one.telemetry.pending_alerts.take()  # it dies before it has stored them
    beat(one)
    one.telemetry.pending_alerts.take()
    change(one, "DELETE FROM alerts")
    beat(two)
    assert open_alerts(two)["isolation-score"].detail == "The isolation score of the last hour is 0.900000."


def test_turns_that_nobody_plays_or_gives_up_are_told_of(workers: tuple[Parts, Parts], uma: Scope) -> None:
    """Their worker lives, so no other one takes them from it; but it hangs and renews no lease."""
    one, two = workers
    turn = begin(answered_by(one, "Hello"), uma, "Hello")
    beat(two)
    assert open_alerts(two) == {}
    change(one, "UPDATE live_turns SET lease_until = '2026-01-01 00:00:00'")
    beat(two)
    unsettled = open_alerts(two)["unsettled-reservations"]
    assert unsettled.detail == (
        "Turns that nobody plays or settles: 1. The lease of the first ended 2026-01-01 00:00:00 UTC."
    )
    turn.finish()


@only_sqlite
@pytest.mark.parametrize("which", [0, 1])
def test_a_thread_that_was_late_is_told_of_by_its_own_worker(one: Parts, which: int) -> None:
    heartbeat = one.turns.heartbeat.threads[which]
    heartbeat.beat(due=time.monotonic() - 12)
    beat(one)
    told = open_alerts(one)["heartbeat-late"]
    assert told.subject == f"worker:{one.turns.kit.leases.worker()}"
    assert told.detail == f"The thread {heartbeat.name} of this worker was 12 s late."


@only_sqlite
def test_a_beat_that_is_in_time_is_not_told_of(one: Parts) -> None:
    for heartbeat in one.turns.heartbeat.threads:
        heartbeat.beat(due=time.monotonic() - 5)
    beat(one)
    assert open_alerts(one) == {}


class Hanging:
    """A job that comes to no end until it is told to."""

    name = "hang"

    def __init__(self) -> None:
        self.hangs, self.end_it = threading.Event(), threading.Event()

    def run(self, now: float) -> bool:
        self.hangs.set()
        assert self.end_it.wait(30)
        return False


@pytest.fixture
def hanging(one: Parts) -> Iterator[Hanging]:
    """Worker one has reported, and now its heartbeat hangs."""
    beat(one)
    job = Hanging()
    thread = one.turns.heartbeat.threads[1]
    thread.jobs = (ScheduledJob(job), *thread.jobs)
    one.turns.heartbeat.wake()
    assert job.hangs.wait(10)
    yield job
    job.end_it.set()


def test_a_worker_that_hangs_altogether_is_told_of_by_another_one(
    workers: tuple[Parts, Parts], hanging: Hanging
) -> None:
    one, two = workers
    beat(two)
    assert open_alerts(two) == {}, "it has just reported"
    silent = one.turns.kit.leases.worker()
    change(one, "UPDATE workers SET seen_at = '2026-01-01 00:00:00' WHERE id = :id", id=silent)
    beat(two)
    told = open_alerts(two)["heartbeat-late"]
    assert told.subject == f"worker:{one.turns.kit.leases.worker()}"
    assert "has reported nothing since 2026-01-01 00:00:00 UTC" in told.detail


def rows(parts: Parts) -> list[str]:
    with parts.db.writing() as db:
        return list(db.scalars(select(WorkerRow.id).order_by(WorkerRow.id)))


def add_worker(parts: Parts, name: str, seconds_ago: float) -> None:
    seen_at = utc_now() - timedelta(seconds=seconds_ago)
    with parts.db.writing() as db:
        db.add(WorkerRow(id=name, host="box", pid=7, started_at=seen_at, seen_at=seen_at, numbers={}))


def test_a_worker_whose_process_has_ended_is_forgotten_and_not_missed(one: Parts) -> None:
    machine, pid, started, _ = one.turns.kit.leases.worker().split(".")
    add_worker(one, f"{machine}.{pid}.{int(started) + 1}.x", 60)  # another process has its number now
    add_worker(one, ELSEWHERE, 3600)  # and this one has been away for too long to be missed
    beat(one)
    assert rows(one) == [one.turns.kit.leases.worker()]
    assert open_alerts(one) == {}


def test_a_worker_of_another_machine_is_told_of_when_it_is_silent(one: Parts) -> None:
    add_worker(one, ELSEWHERE, 20)
    beat(one)
    assert open_alerts(one) == {}
    add_worker(one, f"{ELSEWHERE}-2", 60)
    beat(one)
    assert open_alerts(one)["heartbeat-late"].subject == f"worker:{ELSEWHERE}-2"


def test_a_worker_that_ends_in_good_order_stores_what_it_has_and_is_not_missed(one: Parts) -> None:
    one.turns.heartbeat.wake()
    ends = time.monotonic() + 10
    while rows(one) != [one.turns.kit.leases.worker()]:
        assert time.monotonic() < ends
    one.telemetry.alert("reset-slow", "as a test")
    one.turns.close()
    assert rows(one) == []
    assert open_alerts(one).keys() == {"reset-slow"}


@only_sqlite
def test_an_alert_that_was_acknowledged_comes_back_only_after_an_hour(one: Parts, uma: Scope) -> None:
    class AlwaysTrue:
        kind = "heartbeat-late"

        def found(self, now: Any) -> dict[str, str]:
            return found

    found = {"worker:1": "late"}
    job = FindConditions(one.telemetry, [AlwaysTrue()], one.db.clock.utc_now)

    def raised(now: float) -> int:
        job.run(now)
        return sum(alert.count for alert in one.telemetry.pending_alerts.take())

    assert [raised(now) for now in (0.0, 5.0, RAISED_AGAIN_SECONDS, RAISED_AGAIN_SECONDS + 5)] == [1, 0, 1, 0]
    found = {}
    assert raised(RAISED_AGAIN_SECONDS + 10) == 0
    found = {"worker:1": "late again"}
    assert raised(RAISED_AGAIN_SECONDS + 15) == 1, "it had ended meanwhile"


@only_sqlite
def test_what_could_not_be_stored_is_stored_with_the_next_ones(
    one: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.telemetry.alert("reset-slow", "first")
    with monkeypatch.context() as patch:
        patch.setattr(AlertStore, "add", away)
        with pytest.raises(StorageUnavailable):
            beat(one)
    one.telemetry.alert("reset-slow", "second")
    beat(one)
    told = open_alerts(one)["reset-slow"]
    assert (told.count, told.detail) == (2, "second")


def away(store: AlertStore, alerts: Any) -> None:
    raise StorageUnavailable("away")


def test_pending_alerts_take_no_more_room_than_they_may_however_long_the_database_is_away() -> None:
    pending = PendingAlerts()
    for _ in range(3):
        taken = pending.take()
        for n in range(MAX_PENDING + 5):
            pending.add(Alert("budget-90", "x", f"user:{n}"))
        pending.put_back(taken)
    assert len(taken) == MAX_PENDING
    found = pending.take()
    assert len(found) == MAX_PENDING
    assert {alert.count for alert in found} == {3}
