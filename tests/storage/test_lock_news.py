"""Workers tell each other that SQLite's write lock is free, and none waits for that for long."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentapp.isolation import ThreadBinder
from agentapp.storage import lock_news
from agentapp.storage.db import Database
from agentapp.storage.lock_news import LockNews, make_pipe

Pipe = tuple[int, int]
NEVER = 20.0  # within a test


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = make_pipe()
    yield made
    for end in made:
        os.close(end)


def joined(pipe: Pipe) -> LockNews:
    news = LockNews()
    news.join(pipe)
    return news


def test_who_waits_is_told_when_another_worker_has_written(
    tmp_path: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one file, as two workers have it. Nobody asks again by itself here."""
    monkeypatch.setattr(lock_news, "ASK_AGAIN_AT_LATEST_SECONDS", NEVER)
    one, two = (Database(f"sqlite:///{tmp_path}/a.sqlite3", ThreadBinder()) for _ in range(2))
    waits = threading.Event()
    for db in (one, two):
        db.lock_news.join(pipe)
    monkeypatch.setattr(two.lock_news, "wait", lambda: (waits.set(), LockNews.wait(two.lock_news)))

    def write() -> None:
        with two.transaction() as db:
            db.run_text("CREATE TABLE b (id TEXT)")

    with ThreadPoolExecutor(1) as pool:
        with one.transaction() as db:
            db.run_text("CREATE TABLE a (id TEXT)")
            written = pool.submit(write)
            assert waits.wait(10)
        written.result(5)
    for db in (one, two):
        db.close()


def test_nobody_waits_long_if_nobody_tells_anything(pipe: Pipe) -> None:
    LockNews().wait()
    joined(pipe).wait()


def test_news_that_nobody_has_heard_are_no_trouble(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_news, "ASK_AGAIN_AT_LATEST_SECONDS", NEVER)
    news = joined(pipe)
    for _ in range(100_000):  # more than a pipe holds
        news.tell()
    news.wait()


def test_news_that_another_worker_has_read_first_are_only_missed(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = joined(pipe)
    news.tell()
    read = os.read

    def quicker(end: int, size: int) -> bytes:
        read(end, size)
        return read(end, size)

    monkeypatch.setattr(os, "read", quicker)
    news.wait()
