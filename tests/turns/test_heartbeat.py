"""Turns across workers: journaled, followed, stopped, kept alive, and given up when their worker dies.

Two apps on one database stand for two workers; each has its own journal, leases and turns.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.provider import Reply
from agentapp.config import Settings
from agentapp.errors import LoginRequired, StorageUnavailable
from agentapp.guardrails.admission import TurnCells
from agentapp.isolation import Scope, UserScope
from agentapp.storage import migrate
from agentapp.storage.values import Begun, Lease, Sent
from agentapp.turns import heartbeat as journal
from agentapp.turns.feed import Follower
from agentapp.turns.service import Stage
from agentapp.web.parts import Parts
from tests.support.people import without_limits
from tests.support.postgres import postgres_url
from tests.support.scripted import SPENT, Scripted, calls

PATIENCE = 30.0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, sqlite_template: Path) -> Iterator[str]:
    if request.param == "sqlite":
        shutil.copy(sqlite_template, tmp_path / "two.sqlite3")
        yield f"sqlite:///{tmp_path / 'two.sqlite3'}"
        return
    with postgres_url() as fresh:
        migrate.upgrade(fresh)
        yield fresh


@pytest.fixture
def workers(url: str, settings: Settings, make_app: Any) -> tuple[Parts, Parts]:
    wanted = without_limits(replace(settings, database_url=url))
    one, two = (make_app(wanted=wanted).extensions["agentapp"] for _ in range(2))
    return one, two


@pytest.fixture
def scope(workers: tuple[Parts, Parts]) -> Scope:
    user = workers[0].accounts.add("uma", "a long enough password")
    mine = UserScope(request_id="r", tenant_id=user.tenant_id, user_id=user.id)
    return mine.within(workers[0].chats.create(mine).id)


class Spoken:
    """A model that says the pieces it is given, one at a time, until it is told to end."""

    def __init__(self) -> None:
        self._more = threading.Semaphore(0)
        self._pieces: list[str] = []
        self.asked = threading.Event()

    def say(self, *pieces: str) -> None:
        for piece in pieces:
            self._pieces.append(piece)
            self._more.release()

    def end(self) -> None:
        self._more.release()

    def __call__(self, call: Any) -> Iterator[str | Reply]:
        self.asked.set()
        at = 0
        while True:
            assert self._more.acquire(timeout=PATIENCE)
            if at == len(self._pieces):
                yield Reply("".join(self._pieces), usage=SPENT)
                return
            yield self._pieces[at]
            at += 1


def playing(parts: Parts, *answers: Any) -> Stage:
    """The worker's stage, with a scripted model."""
    driver = ThreadedDriver(Scripted(*answers), parts.binder, parts.answering.deadlines)
    return replace(parts.stage, answering=replace(parts.answering, driver=driver))


def followed(parts: Parts, scope: Scope, turn_id: str, after: int = 0) -> Follower:
    with parts.binder.bound(scope):
        return parts.stage.follow(scope, turn_id, after)


def until(follower: Follower, is_last: Callable[[Any], bool] = lambda event: False) -> list[Any]:
    """Events until that one, or to the end."""
    found, ends = [], time.monotonic() + PATIENCE
    for each in follower:
        assert time.monotonic() < ends, found
        if each is not None:
            found.append(each)
            if is_last(each):
                break
    return found


def said(events: list[Any]) -> str:
    return "".join(event.data["text"] for event in events if event.kind == "text")


def is_text(words: str) -> Callable[[Any], bool]:
    return lambda event: event.kind == "text" and event.data["text"] == words


def rows(parts: Parts, table: str) -> int:
    """Of all owners, which is why it says that it migrates: only migrations may look at everybody's rows."""
    with parts.db.engine.connect().execution_options(agentapp_migrates=True) as connection:
        return int(connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)


def status(parts: Parts, scope: Scope) -> list[str]:
    with parts.binder.bound(scope):
        return [turn.status for turn in parts.chats.transcript(scope).turns]


def held(parts: Parts, scope: Scope) -> tuple[int, ...]:
    """What is reserved and how many turns count as running: all zero when nothing runs."""
    guardrails = parts.answering.guardrails
    with parts.binder.bound(scope):
        cells = TurnCells(*(guardrails.registry.get(key) for key in guardrails.keys(scope)))
    now = guardrails.clock()
    reserved = [cell.budget.holds.amount(now) for cell in cells[:3]]
    return (*reserved, cells.user.bulkhead.holds.count(now), cells.provider.outage.running.count(now))


def wait_for(is_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < ends, "in vain"
        time.sleep(0.02)


def test_another_worker_tells_the_same_events_while_they_come(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    one, two = workers
    model = Spoken()
    model.say("Half ", "of it, ")
    mine = playing(one, calls(("calculate", {"expression": "2+2"})), model).send(scope, Sent("Hello"))
    first = until(mine, is_text("of it, "))
    theirs = followed(two, scope, mine.live.turn_id)
    assert said(until(theirs, is_text("of it, "))) == "Half of it, ", "not only at the end"
    model.say("and the rest")
    model.end()
    first += until(mine)
    again = followed(two, scope, mine.live.turn_id)
    whole = until(again)
    assert whole == first
    assert [each.number for each in whole] == list(range(1, len(whole) + 1))
    assert said(until(theirs)) == "and the rest"
    for each in (mine, theirs, again):
        each.close()
    assert rows(one, "live_turns") == rows(one, "turn_events") == 0
    assert two.stage.seats.taken() == one.stage.seats.taken() == 0


@pytest.mark.parametrize("after", [1, 4, 7])
def test_an_ended_turn_is_told_from_any_point_as_it_was(
    workers: tuple[Parts, Parts], scope: Scope, after: int
) -> None:
    one, two = workers
    mine = playing(one, "some words to be said one by one").send(scope, Sent("Hello"))
    events = until(mine)
    mine.close()
    again = followed(two, scope, mine.live.turn_id, after)
    assert until(again) == events[after:]
    again.close()
    beyond = followed(two, scope, mine.live.turn_id, len(events))
    assert until(beyond) == [], "whoever has heard the end is told nothing more"
    beyond.close()


def test_many_turns_are_journaled_in_one_transaction_at_a_time(
    workers: tuple[Parts, Parts], scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the number of streams: what is counted is the transactions in which events were written.

    And all of them end at once without waiting for each other, or for the journal, in a circle.
    """
    one, _ = workers
    written: Counter[int] = Counter()

    def count(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith("INSERT INTO turn_events"):
            written[id(conn), conn.get_transaction() and id(conn.get_transaction())] += 1

    models = [Spoken() for _ in range(30)]
    chats = [scope.within(one.chats.create(scope).id) for _ in models]
    stage = [playing(one, model) for model in models]
    followers = [stage[n].send(chat, Sent("Hello")) for n, chat in enumerate(chats)]
    assert all(model.asked.wait(PATIENCE) for model in models)
    wait_for(lambda: rows(one, "turn_events") >= len(models))
    one.stage.journal.close()  # what is said now is written in one go, when it goes on
    event.listen(one.db.engine, "before_cursor_execute", count)
    for model in models:
        model.say("one ", "two ", "three ")
    for follower in followers:
        until(follower, is_text("three "))
    before = rows(one, "turn_events")
    one.stage.journal.wake()
    wait_for(lambda: rows(one, "turn_events") >= before + len(models))
    event.remove(one.db.engine, "before_cursor_execute", count)
    assert len(written) == 1
    for model in models:
        model.end()
    for follower in followers:
        assert until(follower)[-1].data["status"] == "completed"
        follower.close()
    assert rows(one, "turn_events") == 0
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("agentapp")]


def test_a_stop_is_heard_in_the_worker_that_plays_even_if_the_model_is_silent(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    one, two = workers
    model = Spoken()
    model.say("So far, ")
    mine = playing(one, model).send(scope, Sent("Hello"))
    until(mine, is_text("So far, "))
    with two.binder.bound(scope):
        stopping = two.stage.stop(scope, mine.live.turn_id)
    end = stopping.finish(PATIENCE)
    assert end is not None
    assert (end["status"], end["reply"], end.get("error")) == ("stopped", "So far, ", None)
    assert until(mine)[-1].data == end
    mine.close()
    stopping.close()
    assert held(one, scope) == (0, 0, 0, 0, 0)
    assert status(one, scope) == ["stopped"]
    model.end()
    again = playing(one, "fine").send(scope, Sent("Next"))
    assert until(again)[-1].data["status"] == "completed"
    again.close()


def shorten(parts: Parts, seconds: float) -> None:
    parts.answering.leases._length = timedelta(seconds=seconds)


def test_a_long_turn_keeps_its_lease(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives its first lease several times over, while another worker looks out for the dead."""
    one, two = workers
    monkeypatch.setattr(journal, "CHORES", 0.05)
    for parts in workers:
        shorten(parts, 1.0)
    two.stage.journal.wake()
    model = Spoken()
    mine = playing(one, model).send(scope, Sent("Hello"))
    assert model.asked.wait(PATIENCE)
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        assert status(two, scope) == ["running"]
        time.sleep(0.1)
    model.say("still here")
    model.end()
    assert until(mine)[-1].data["reply"] == "still here"
    mine.close()


def test_a_dead_workers_turn_is_given_up_once_and_what_it_said_is_kept(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower elsewhere hears of it, also one who had heard more than was written down."""
    one, two = workers
    monkeypatch.setattr(journal, "CHORES", 0.05)
    shorten(one, 1.0)
    shorten(two, 1.0)
    model = Spoken()
    model.say("Written down, ")
    mine = playing(one, model).send(scope, Sent("Hello"))
    events = until(mine, is_text("Written down, "))
    wait_for(lambda: rows(one, "turn_events") > 0)
    watching = followed(two, scope, mine.live.turn_id)
    assert until(watching, is_text("Written down, ")) == events
    one.stage.journal.close()  # as good as dead: nothing is heard of it any more
    model.say("lost", " for ever")
    events += until(mine, is_text(" for ever"))
    ahead = followed(two, scope, mine.live.turn_id, events[-1].number)
    end = until(watching)[-1]
    assert (end.kind, end.data["status"]) == ("turn_completed", "interrupted")
    assert end.data["reply"] == "Written down, "
    unheard = until(ahead)
    assert [(each.number, each.data) for each in unheard] == [(events[-1].number + 1, end.data)]
    assert status(two, scope) == ["interrupted"]
    assert held(two, scope) == (0, 0, 0, 0, 0)
    following = playing(two, "fine").send(scope, Sent("Anybody there?"))
    assert until(following)[-1].data["reply"] == "fine"
    model.end()  # it was not dead after all: what it says now is nobody's answer
    assert until(mine)[-1].data["status"] == "interrupted"
    for each in (mine, watching, ahead, following):
        each.close()
    assert status(two, scope) == ["interrupted", "completed"]
    assert held(two, scope) == (0, 0, 0, 0, 0)


def test_a_turn_that_was_taken_from_its_worker_does_not_go_on_spending(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    one, _ = workers
    model = Spoken()
    mine = playing(one, model).send(scope, Sent("Hello"))
    assert model.asked.wait(PATIENCE)
    one.stage.journal.close()  # or it would renew the lease
    with one.db.writing() as db:
        db.execute(text("UPDATE live_turns SET lease_until = '2020-01-01 00:00:00'"))
    one.answering.turns.end_dead(scope, one.answering.leases.current())
    one.stage.journal.wake()
    assert until(mine)[-1].data["status"] == "interrupted", "without another word of the model"
    mine.close()
    assert held(one, scope) == (0, 0, 0, 0, 0)
    model.end()


def test_after_the_database_was_away_nobody_is_taken_for_dead_at_once(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = workers
    monkeypatch.setattr(journal, "CHORES", 0.05)
    monkeypatch.setattr(journal, "TICK", 0.05)
    for parts in workers:
        shorten(parts, 2.0)
    model = Spoken()
    mine = playing(one, model).send(scope, Sent("Hello"))
    two.stage.journal.wake()
    assert model.asked.wait(PATIENCE)
    away = threading.Event()
    away.set()
    failed: Counter[str] = Counter()
    real = type(one.db).writing, type(one.db).reading

    def broken(which: int) -> Any:
        def begin(self: Any) -> Any:
            name = threading.current_thread().name
            if away.is_set() and name == "agentapp-journal":
                failed[name] += 1
                raise StorageUnavailable("away")
            return real[which](self)

        return begin

    monkeypatch.setattr(type(one.db), "writing", broken(0))
    monkeypatch.setattr(type(one.db), "reading", broken(1))
    wait_for(lambda: failed["agentapp-journal"] > 4)
    with one.db.writing() as db:  # it was away for longer than any lease
        db.execute(text("UPDATE live_turns SET lease_until = '2020-01-01 00:00:00'"))
    away.clear()
    wait_for(lambda: not overdue(one))
    model.say("still here")
    model.end()
    assert until(mine)[-1].data["status"] == "completed"
    mine.close()


def overdue(parts: Parts) -> bool:
    with parts.db.writing() as db:
        found = db.execute(text("SELECT count(*) FROM live_turns WHERE lease_until < '2021-01-01'"))
        return bool(found.scalar())


def test_a_stream_ends_when_its_login_does_and_nobody_elses(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = workers
    monkeypatch.setattr(journal, "CHORES", 0.05)
    with one.binder.bound(scope):
        _, token = one.accounts.sign_in("uma", "a long enough password")
        _, other = one.accounts.sign_in("uma", "a long enough password")
    model = Spoken()
    mine = playing(one, model).send(scope, Sent("Hello"), token)
    with two.binder.bound(scope):
        there = two.stage.follow(scope, mine.live.turn_id, token=token)
        stays = two.stage.follow(scope, mine.live.turn_id, token=other)
    assert model.asked.wait(PATIENCE)
    one.accounts.sign_out(token)
    for follower in (mine, there):
        with pytest.raises(LoginRequired):
            until(follower)
        follower.close()
    model.say("the answer")
    model.end()
    end = until(stays)[-1]
    assert (end.data["status"], end.data["reply"]) == ("completed", "the answer")
    stays.close()


@pytest.mark.parametrize("grace", [0.4, PATIENCE])
def test_a_worker_that_ends_lets_its_turns_end_or_interrupts_them_in_time(
    workers: tuple[Parts, Parts], scope: Scope, grace: float
) -> None:
    one, _ = workers
    ending = threading.Event()
    one.stage.journal.end_with(ending.is_set, grace)
    model = Spoken()
    model.say("Half")
    mine = playing(one, model).send(scope, Sent("Hello"))
    until(mine, is_text("Half"))
    ending.set()
    if grace == PATIENCE:
        assert not one.stage.journal.is_over()
        model.say(" and half")
        model.end()
    end = until(mine)[-1]
    mine.close()
    model.end()
    whole = ("completed", "Half and half") if grace == PATIENCE else ("interrupted", "Half")
    assert (end.data["status"], end.data["reply"]) == whole
    assert status(one, scope) == [whole[0]]
    assert held(one, scope) == (0, 0, 0, 0, 0)
    wait_for(one.stage.journal.is_over)


def test_a_worker_that_is_gone_from_this_machine_is_not_waited_for(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn has a lease for an hour; but its process has ended."""
    one, two = workers
    monkeypatch.setattr(journal, "CHORES", 0.05)
    process = subprocess.Popen(["true"])
    process.wait()
    machine, _, rest = one.answering.leases.current().worker.split(".")
    gone = Lease(f"{machine}.{process.pid}.{rest}", timedelta(hours=1))
    elsewhere = Lease(f"another-machine.{process.pid}.{rest}", timedelta(hours=1))
    assert two.answering.leases.is_gone(gone.worker)
    assert not two.answering.leases.is_gone(elsewhere.worker)
    assert not two.answering.leases.is_gone(one.answering.leases.current().worker)
    for parts in workers:
        shorten(parts, 3600)
    other = scope.within(one.chats.create(scope).id)
    for at, lease in ((scope, gone), (other, elsewhere)):
        assert isinstance(
            one.answering.turns.begin(at, Sent("Hello"), lease, one.answering.max_cost()), Begun
        )
    two.stage.journal.wake()
    wait_for(lambda: status(two, scope) == ["interrupted"])
    assert status(two, other) == ["running"], "of that machine nothing is known"
