"""The stores of sessions: one contract, on SQLite, PostgreSQL and Redis."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agentapp.errors import RedisAway, StorageUnavailable
from agentapp.sessions import (
    BadSessionKey,
    RedisSessions,
    SessionConflict,
    SessionKey,
    SessionLimits,
    SessionStore,
    SessionTooLarge,
    SqlSessions,
    StoredSession,
)
from tests.support.documentation import example
from tests.support.postgres import postgres_url
from tests.support.redis_server import redis_server, shared_url
from tests.support.rounds import ROUNDS
from tests.support.server_users import wait_for

Make = Callable[..., SessionStore]
KEY = SessionKey("acme", "ann", "one")
EACH = 1_000 if ROUNDS > 1 else 200  # messages that each process appends


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes stores of the same sessions, each as another process would."""
    made: list[SessionStore] = []
    with address(request.param, tmp_path) as url:

        def new(**options: Any) -> SessionStore:
            made.append(store_at(url, **options))
            return made[-1]

        yield new
        for each in made:
            each.close()


@contextmanager
def address(kind: str, directory: Path) -> Iterator[str]:
    if kind == "postgresql":
        with postgres_url() as url:
            yield url
    else:
        yield shared_url() if kind == "redis" else f"sqlite:///{directory / 'sessions.sqlite3'}"


def store_at(url: str, **options: Any) -> SessionStore:
    return (RedisSessions if url.startswith("redis") else SqlSessions)(url, **options)


def messages(store: SessionStore, key: SessionKey = KEY) -> tuple[Any, ...]:
    found = store.load(key)
    assert found is not None
    return found.messages


def test_what_is_appended_and_saved_is_loaded_by_another_process(make: Make) -> None:
    ours, theirs = make(), make()
    assert ours.load(KEY) is None
    said = [
        {"role": "user", "content": "naïve \u2028 \U0001f600 \x00 </script>"},
        ["a", 1, None, 1.5],
        "",
        {},
    ]
    assert ours.append(KEY, said[0], said[1]) == 2
    assert theirs.append(KEY, *said[2:]) == 4
    before = theirs.load(KEY)
    assert before is not None
    assert (before.last, before.messages, before.state) == (4, tuple(said), None)
    version = theirs.save(KEY, {"agent": "billing"}, before.version)
    after = ours.load(KEY, after=3)
    assert after is not None
    assert (after.version, after.last, after.messages) == (version, 4, ({},))
    assert after.state == {"agent": "billing"}


def test_a_save_that_is_based_on_something_old_is_a_conflict_and_changes_nothing(make: Make) -> None:
    ours, theirs = make(), make()
    first = ours.save(KEY, "first", 0)
    with pytest.raises(SessionConflict) as raised:
        theirs.save(KEY, "also first", 0)
    assert raised.value.current == first
    second = theirs.save(KEY, "second", first)
    with pytest.raises(SessionConflict) as raised:
        ours.save(KEY, "based on the first", first)
    assert raised.value.current == second
    found = ours.load(KEY)
    assert found is not None
    assert (found.version, found.state, found.messages) == (second, "second", ())
    with pytest.raises(SessionConflict) as raised:
        ours.save(SessionKey("acme", "ann", "absent"), "x", second)
    assert raised.value.current == 0
    assert ours.load(SessionKey("acme", "ann", "absent")) is None, "a conflict begins no session"


def test_a_session_that_was_begun_anew_is_not_the_old_one(make: Make) -> None:
    store = make()
    old = store.save(KEY, "old", 0)
    store.append(KEY, "old")
    assert store.delete(KEY)
    assert not store.delete(KEY)
    assert store.load(KEY) is None
    assert store.append(KEY, "new") == 1
    with pytest.raises(SessionConflict):
        store.save(KEY, "based on the old one", old)
    assert messages(store) == ("new",)


def test_one_session_is_never_another(make: Make) -> None:
    store = make()
    parts = [
        "a",
        "b",
        "a:b",
        "a%3Ab",
        "a b",
        "A",
        "ä",
        "a\u0308",
        "%",
        "_",
        "*",
        "a/b",
        "a|b",
        "'",
        '"',
        "0",
        "{a}",
    ]
    rng = random.Random(17)
    keys = {SessionKey(*rng.choices(parts, k=3)) for _ in range(150)}
    keys |= {SessionKey("a:b", "c", "d"), SessionKey("a", "b:c", "d"), SessionKey("a", "b", "c:d")}
    for key in keys:
        store.append(key, [key.tenant, key.user, key.session])
    for key in keys:
        assert messages(store, key) == ([key.tenant, key.user, key.session],)


@pytest.mark.parametrize("bad", ["", None, 7, b"a", "a\x00b", "a\nb", "x" * 201, "\ud800"])
def test_a_missing_id_is_an_error_and_never_a_default(bad: Any) -> None:
    for ids in ((bad, "b", "c"), ("a", bad, "c"), ("a", "b", bad)):
        with pytest.raises(BadSessionKey):
            SessionKey(*ids)


def test_what_is_too_large_or_no_json_is_refused_and_nothing_is_changed(make: Make) -> None:
    store = make(limits=SessionLimits(message_bytes=10, state_bytes=20, messages=3))
    store.append(KEY, "12345678")
    refused: list[Callable[[], object]] = [
        lambda: store.append(KEY, "ok", "123456789"),
        lambda: store.append(KEY, "2", "3", "4"),
        lambda: store.save(KEY, "x" * 19, 0),
        lambda: store.append(SessionKey("acme", "ann", "other"), 1, 2, 3, 4),
    ]
    for act in refused:
        with pytest.raises(SessionTooLarge):
            act()
    for value in (object(), float("nan"), {1, 2}, b"bytes"):
        with pytest.raises((TypeError, ValueError)):
            store.append(KEY, value)
    with pytest.raises(ValueError, match="no message"):
        store.append(KEY)
    assert messages(store) == ("12345678",)
    assert store.load(SessionKey("acme", "ann", "other")) is None


def used_for_longer_than_it_lives(store: SessionStore) -> StoredSession | None:
    """Twice after six tenths of its time; None if the machine was too slow for that."""
    used_at = time.monotonic()
    store.append(KEY, "old")
    for _ in range(2):
        time.sleep(0.6)
        asked_at, exists = time.monotonic(), store.touch(KEY)
        if time.monotonic() - used_at > 1:
            return None
        assert exists
        used_at = asked_at
    found = store.load(KEY)
    if time.monotonic() - used_at > 1:
        return None
    assert found is not None
    return found


def test_a_session_lives_from_its_last_use_on_and_then_is_gone_as_a_whole(make: Make) -> None:
    store, forever = make(ttl=1.0), make()
    forever.append(SessionKey("acme", "ann", "kept"), "kept")
    while (old := used_for_longer_than_it_lives(store)) is None:
        pass
    wait_for(lambda: store.load(KEY) is None)
    assert not store.touch(KEY)
    assert not store.delete(KEY)
    with pytest.raises(SessionConflict):
        store.save(KEY, "based on the old one", old.version)
    assert store.append(KEY, "new") == 1
    assert messages(store) == ("new",)
    assert forever.load(SessionKey("acme", "ann", "kept")) is not None


def test_what_has_expired_can_be_purged_and_nothing_else(make: Make) -> None:
    store, forever = make(ttl=0.05), make()
    keys = [SessionKey("acme", "ann", f"{number}") for number in range(5)]
    for key in keys:
        store.append(key, "x")
    forever.append(KEY, "kept")
    wait_for(lambda: store.load(keys[-1]) is None)
    assert store.purge() in (0, 5), "Redis does it by itself"
    assert store.purge() == 0
    assert messages(forever) == ("kept",)
    for ttl in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="time to live"):
            make(ttl=ttl)


def _append(url: str, name: str, each: int, begin: Any) -> None:
    store = store_at(url)
    begin.wait()
    for number in range(each):
        store.append(KEY, [name, number])
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "redis"])
def test_of_two_processes_that_append_nothing_is_lost_and_the_order_is_kept(
    kind: str, tmp_path: Path
) -> None:
    """They also make the tables at the same moment."""
    fresh = multiprocessing.get_context("forkserver")
    with address(kind, tmp_path) as url:
        begin = fresh.Barrier(2)
        processes = [fresh.Process(target=_append, args=(url, name, EACH, begin)) for name in ("a", "b")]
        for each in processes:
            each.start()
        for each in processes:
            each.join()
        assert [each.exitcode for each in processes] == [0, 0]
        store = store_at(url)
        found = store.load(KEY)
        store.close()
    assert found is not None
    assert found.last == len(found.messages) == 2 * EACH
    for name in ("a", "b"):
        assert [number for who, number in found.messages if who == name] == list(range(EACH))


def test_of_many_threads_that_save_exactly_one_wins_each_round(make: Make) -> None:
    stores, wins = [make(), make()], count()
    version = stores[0].save(KEY, {"count": 0}, 0)
    meet = threading.Barrier(6)
    errors: list[BaseException] = []

    def add(store: SessionStore) -> None:
        try:
            meet.wait()
            for _ in range(10 * ROUNDS):
                while True:
                    found = store.load(KEY)
                    assert found is not None
                    try:
                        store.save(KEY, {"count": found.state["count"] + 1}, found.version)
                    except SessionConflict:
                        continue
                    next(wins)
                    break
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(stores[n % 2],)) for n in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    found = stores[0].load(KEY)
    assert found is not None
    assert (found.state, found.version) == ({"count": 60 * ROUNDS}, version + 60 * ROUNDS)


def test_what_is_appended_while_it_is_deleted_is_of_one_session_or_the_other(make: Make) -> None:
    store, other = make(), make()
    ends = threading.Event()
    wrong: list[object] = []

    def look_and_delete() -> None:
        while not ends.is_set():
            found = other.load(KEY)
            if found is not None:
                first = found.messages[0] if found.messages else 0
                if list(found.messages) != list(range(first, first + found.last)):
                    wrong.append(found)
            other.delete(KEY)

    thread = threading.Thread(target=look_and_delete)
    thread.start()
    for number in range(60 * ROUNDS):
        store.append(KEY, number)
    ends.set()
    thread.join()
    assert wrong == []


def _in_child(store: SessionStore, answers: Any) -> None:
    answers.put([store.append(KEY, f"child {number}") for number in range(20)])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # that is what is tried
def test_a_store_that_was_used_before_a_fork_can_be_used_after_it(make: Make) -> None:
    store = make()
    store.append(KEY, "parent")
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=_in_child, args=(store, answers))
    child.start()
    ours = [store.append(KEY, f"parent {number}") for number in range(20)]
    theirs = answers.get()
    child.join()
    assert child.exitcode == 0
    assert sorted(ours + theirs) == list(range(2, 42))
    assert len(messages(store)) == 41


def test_while_redis_is_away_it_is_an_error_and_never_an_empty_session() -> None:
    with redis_server() as server:
        store = RedisSessions(server.url)
        store.append(KEY, "there")
        with server.frozen():
            for act in (store.load, store.delete, store.touch, lambda key: store.append(key, "x")):
                with pytest.raises(StorageUnavailable):
                    act(KEY)
        wait_for(lambda: not store._redis.is_away)
        assert messages(store)[:1] == ("there",)
        server.stop()
        with pytest.raises(RedisAway):
            store.load(KEY)
        store.close()


def test_while_the_database_is_away_it_is_an_error_too(tmp_path: Path) -> None:
    with postgres_url() as url:
        gone = url
    store = SqlSessions(gone)
    with pytest.raises(StorageUnavailable):
        store.load(KEY)
    store.close()


@pytest.mark.parametrize(
    "url", ["", "http://h", "redis://", "redis://h/x", "redis://h?db=1", "redis://h:99999"]
)
def test_a_wrong_url_is_an_error_at_once(url: str) -> None:
    for kind in (RedisSessions, SqlSessions):
        with pytest.raises(ValueError, match=r"must|may be"):
            kind(url)


def test_the_example_in_the_documentation_runs(tmp_path: Path) -> None:
    code = example("docs/sessions.md", "RedisSessions(")
    assert len(code.strip().splitlines()) <= 15
    run = code.replace("redis://127.0.0.1:6379/0", shared_url())
    said = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60
    )
    assert said.stdout.splitlines() == ["2 messages, last agent: billing"]
