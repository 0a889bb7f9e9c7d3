"""Connections to SQLite that stay open: each has one user at a time, and nothing is left on it."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentapp.isolation import ThreadBinder
from agentapp.storage.db import Database
from agentapp.storage.holders import ConnectionHolders
from agentapp.storage.kept_connections import KeptConnections


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path}/a.sqlite3", ThreadBinder())
    yield made
    made.close()


@pytest.fixture
def kept(db: Database) -> Iterator[KeptConnections]:
    made = KeptConnections(db.engine, 2, ConnectionHolders(ThreadBinder()))
    yield made
    assert made.taken == 0
    made.close()


def test_nobody_is_given_one_that_another_has_and_those_used_last_are_used_first(
    kept: KeptConnections,
) -> None:
    one, two = kept.take(), kept.take()
    assert one.driver is not two.driver
    assert kept.taken == 2
    kept.give_back(one)
    kept.give_back(two)
    assert kept.take() is two
    kept.give_back(two)


def test_no_more_are_kept_than_may_be_idle(kept: KeptConnections) -> None:
    taken = [kept.take() for _ in range(3)]
    for each in taken:
        kept.give_back(each)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        taken[2].driver.execute("SELECT 1")
    assert taken[1].driver.execute("SELECT 1").fetchall() == [(1,)]


def test_what_was_begun_and_not_ended_is_rolled_back(kept: KeptConnections) -> None:
    one = kept.take()
    one.driver.execute("BEGIN")
    one.driver.execute("CREATE TABLE half (id TEXT)")
    kept.give_back(one)
    assert not one.driver.in_transaction
    assert one.driver.execute("SELECT * FROM sqlite_master").fetchall() == []


def test_one_that_broke_is_not_kept(kept: KeptConnections) -> None:
    one = kept.take()
    one.driver.close()
    kept.give_back(one)
    two = kept.take()
    assert two is not one
    kept.give_back(two)


def test_a_forked_child_opens_its_own(kept: KeptConnections) -> None:
    """Two processes on one connection would corrupt the file."""
    parents = kept.take()
    kept.give_back(parents)
    told: multiprocessing.SimpleQueue[bool] = multiprocessing.get_context("fork").SimpleQueue()
    child = multiprocessing.get_context("fork").Process(target=lambda: told.put(kept.take() is parents))
    child.start()
    child.join(10)
    assert (child.exitcode, told.get()) == (0, False)
    assert kept.take() is parents
    assert parents.pid == os.getpid()
    kept.give_back(parents)
