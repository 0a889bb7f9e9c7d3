"""The token of who writes: it is passed on at once, and nobody waits long for one that is lost."""

from __future__ import annotations

import os
import select
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import exc, text

from agentapp.isolation import ThreadBinder
from agentapp.storage import write_token
from agentapp.storage.db import Database
from agentapp.storage.write_token import WriteToken, make_pipe

Pipe = tuple[int, int]
NEVER = 20.0  # within a test


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = make_pipe()
    yield made
    for end in made:
        os.close(end)


@pytest.fixture
def workers(tmp_path: Path, pipe: Pipe) -> Iterator[tuple[Database, Database]]:
    """Two databases on one file, as two workers have them."""
    one, two = (Database(f"sqlite:///{tmp_path}/a.sqlite3", ThreadBinder()) for _ in range(2))
    for db in (one, two):
        db.share_writing(pipe)
    yield one, two
    one.close()
    two.close()


def joined(pipe: Pipe) -> WriteToken:
    token = WriteToken()
    token.join(pipe)
    return token


def is_there(pipe: Pipe) -> bool:
    return bool(select.select([pipe[0]], [], [], 0)[0])


def make_table(db: Database, name: str) -> None:
    with db.transaction() as connection:
        connection.run_text(f"CREATE TABLE {name} (id TEXT)")


def test_who_waits_has_the_token_as_soon_as_another_worker_has_written(
    workers: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_token, "LONGEST_WAIT_SECONDS", NEVER)
    one, two = workers
    waits = threading.Event()
    monkeypatch.setattr(two.write_token, "wait", lambda: (waits.set(), WriteToken.wait(two.write_token)))
    with ThreadPoolExecutor(1) as pool:
        with one.transaction() as db:
            db.run_text("CREATE TABLE first (id TEXT)")
            written = pool.submit(make_table, two, "second")
            assert waits.wait(10)
        written.result(5)


def test_each_way_to_write_gives_the_token_back(workers: tuple[Database, Database], pipe: Pipe) -> None:
    one, two = workers
    make_table(one, "first")
    assert is_there(pipe)
    with two.writing() as db:
        db.execute(text("INSERT INTO first VALUES ('x')"))
        assert not is_there(pipe)
    assert is_there(pipe)
    with pytest.raises(exc.IntegrityError), one.transaction():
        raise sqlite3.IntegrityError("whatever fails")
    assert is_there(pipe)


def test_a_token_that_is_lost_keeps_nobody_from_writing_and_is_there_again_afterwards(
    workers: tuple[Database, Database], pipe: Pipe
) -> None:
    os.read(pipe[0], 1)  # by a worker that was killed then
    make_table(workers[0], "first")
    assert is_there(pipe)


def test_who_has_the_token_waits_for_a_command_that_knows_nothing_of_it(
    workers: tuple[Database, Database], tmp_path: Path
) -> None:
    make_table(workers[0], "first")
    with ThreadPoolExecutor(1) as pool, closing(sqlite3.connect(tmp_path / "a.sqlite3")) as command:
        command.execute("INSERT INTO first VALUES ('x')")
        written = pool.submit(make_table, workers[0], "second")
        assert not written.done()
        command.commit()
        written.result(10)


def test_of_several_tokens_one_is_left(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_token, "LONGEST_WAIT_SECONDS", 0.0)
    one, two = joined(pipe), joined(pipe)
    for _ in range(100_000):  # more than the pipe holds
        one.give_back()
    for _ in range(100_000 // write_token.MOST_TOKENS):
        one.take()
    one.give_back()
    two.take()
    with pytest.raises(BlockingIOError):
        os.read(pipe[0], 1)


def test_a_token_that_another_worker_takes_first_is_only_missed(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_token, "LONGEST_WAIT_SECONDS", 0.001)
    read = os.read
    monkeypatch.setattr(os, "read", lambda end, size: read(end, size) and read(end, size))
    joined(pipe).take()
    assert not is_there(pipe)


def test_a_process_without_a_pipe_does_not_wait_before_its_first_try(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(write_token.time, "sleep", slept.append)
    token = WriteToken()
    token.take()
    assert slept == []
    token.wait()
    assert slept == [write_token.TRY_AGAIN_SECONDS]
