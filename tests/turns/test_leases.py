"""How long a lease is, and what is known of the process that a worker is."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from agentapp.turns.leases import LEASE_LENGTH, LONGEST_LEASE, Leases

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)


@pytest.fixture
def leases() -> Leases:
    return Leases()


def test_a_lease_grows_with_the_lag_and_shrinks_when_that_is_over(leases: Leases) -> None:
    assert leases.current().length == LEASE_LENGTH
    leases.note_lag(10.0)
    assert leases.current().length == timedelta(seconds=40)
    leases.note_lag(0.1)
    assert timedelta(seconds=39) < leases.current().length < timedelta(seconds=40), "not at once"
    for _ in range(1_000):
        leases.note_lag(0.1)
    assert leases.current().length == LEASE_LENGTH


def test_no_lag_makes_a_lease_longer_than_all_workers_take_for_possible(leases: Leases) -> None:
    leases.note_lag(3_600)
    assert leases.current().length == LONGEST_LEASE
    until = NOW + leases.current().length
    assert Leases().is_alive("another-machine.1.1.x", until, NOW), "also one that has no lag itself"
    put_back = NOW - timedelta(hours=1)
    assert not leases.is_alive("another-machine.1.1.x", until, put_back), "the clock was put back since"


def worker(leases: Leases, pid: int, started: int | None = None) -> str:
    machine = leases.current().worker.partition(".")[0]
    return f"{machine}.{pid}.x" if started is None else f"{machine}.{pid}.{started}.x"


def own_start(leases: Leases) -> int:
    return int(leases.current().worker.split(".")[2])


def test_a_process_of_this_machine_that_lives_is_alive_whatever_its_lease_says(leases: Leases) -> None:
    name = Leases().current().worker
    assert leases.lives(name)
    assert leases.is_alive(name, LONG_AGO, NOW)


def test_a_process_that_has_ended_is_dead_at_once(leases: Leases) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert leases.lives(worker(leases, process.pid, 1)) is False, "though its parent has not asked after it"
    assert leases.lives(worker(leases, process.pid)) is False
    process.wait()
    assert leases.lives(worker(leases, process.pid, 1)) is False
    assert leases.lives(worker(leases, process.pid)) is False, "in the name that older versions have"
    assert not leases.is_alive(worker(leases, process.pid, 1), NOW + LEASE_LENGTH, NOW)


def test_another_process_with_the_same_number_is_not_the_worker(leases: Leases) -> None:
    assert leases.lives(worker(leases, os.getpid(), own_start(leases))) is True
    assert leases.lives(worker(leases, os.getpid(), own_start(leases) - 1)) is False


@pytest.mark.parametrize("name", ["another-machine.{pid}.{start}.x", "{machine}.{pid}.x", "", "odd", "a.b.c"])
def test_of_a_worker_of_which_nothing_can_be_known_the_lease_decides(leases: Leases, name: str) -> None:
    machine = leases.current().worker.partition(".")[0]
    name = name.format(machine=machine, pid=os.getpid(), start=own_start(leases))
    assert leases.lives(name) is None
    assert leases.is_alive(name, NOW + LEASE_LENGTH, NOW)
    assert not leases.is_alive(name, LONG_AGO, NOW)


def test_where_nobody_can_tell_machines_apart_the_lease_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentapp.turns.leases._machine_id", str)
    leases = Leases()
    assert leases.lives(leases.current().worker) is None


def test_a_name_fits_into_its_column(leases: Leases) -> None:
    assert len(leases.current().worker) <= 64
    assert leases.current().worker == leases.current().worker
