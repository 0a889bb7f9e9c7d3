"""Turns across workers: stored, followed, stopped, kept alive, and given up when their worker dies.

Two apps on one database stand for two workers; each has its own heartbeat, leases and turns.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.provider import Reply
from agentapp.app import deadlines_of
from agentapp.config import Settings
from agentapp.errors import LoginRequired, StorageUnavailable, TurnInProgress
from agentapp.guardrails.admission import TurnCells
from agentapp.isolation import RequestScope, Scope
from agentapp.turns.abandoned import interrupt_abandoned
from agentapp.turns.feed import Subscription
from agentapp.turns.heartbeat import IDLE_SECONDS, TICK_SECONDS, Job
from agentapp.turns.jobs import (
    AddToSearchIndex,
    GiveUpLostTurns,
    InterruptAbandonedTurns,
    RenewLeases,
    WriteEvents,
)
from agentapp.turns.service import TurnService
from agentapp.turns.turn import Turn
from agentapp.turns.values import Lease, NewMessage
from agentapp.web.parts import Parts
from tests.support.redis_server import shared_url
from tests.support.scripted import SPENT, Scripted, calls
from tests.support.statements import statements_noted
from tests.support.turns import ELSEWHERE, begin, hurry, someone
from tests.support.users import without_limits

TIMEOUT_SECONDS = 30.0


@pytest.fixture
def redis_url(request: pytest.FixtureRequest) -> str | None:
    return shared_url() if getattr(request, "param", None) else None


# For what is the same with a Redis and without.
with_and_without_redis = pytest.mark.parametrize(
    "redis_url", [None, "redis"], ids=["plain", "redis"], indirect=True
)


@pytest.fixture
def workers(
    database_url: str, redis_url: str | None, settings: Settings, make_app: Any
) -> tuple[Parts, Parts]:
    wanted = without_limits(replace(settings, database_url=database_url, redis_url=redis_url))
    one, two = (make_app(wanted=wanted).extensions["agentapp"] for _ in range(2))
    return one, two


@pytest.fixture
def scope(workers: tuple[Parts, Parts]) -> Scope:
    return someone(workers[0], "uma")


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
            assert self._more.acquire(timeout=TIMEOUT_SECONDS)
            if at == len(self._pieces):
                yield Reply("".join(self._pieces), usage=SPENT)
                return
            yield self._pieces[at]
            at += 1


def playing(parts: Parts, *answers: Any) -> TurnService:
    """The worker's stage, with a scripted model."""
    driver = ThreadedDriver(Scripted(*answers), parts.binder, deadlines_of(parts.settings))
    return replace(parts.turns, kit=replace(parts.turns.kit, driver=driver))


def followed(parts: Parts, scope: Scope, turn_id: str, after: int = 0) -> Subscription:
    with parts.binder.bound(scope):
        return parts.turns.follow(scope, turn_id, after)


def until(follower: Subscription, is_last: Callable[[Any], bool] = lambda event: False) -> list[Any]:
    """Events until that one, or to the end."""
    found, ends = [], time.monotonic() + TIMEOUT_SECONDS
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
    guardrails = parts.turns.kit.guardrails
    with parts.binder.bound(scope):
        cells = TurnCells(*(guardrails.registry.get(key) for key in guardrails.keys(scope)))
    now = guardrails.clock()
    reserved = [cell.budget.holds.amount(now) for cell in cells[:3]]
    return (*reserved, cells.user.bulkhead.holds.count(now), cells.provider.bulkhead.holds.count(now))


def wait_for(is_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + TIMEOUT_SECONDS
    while not is_true():
        assert time.monotonic() < ends, "in vain"
        time.sleep(0.02)


@with_and_without_redis
def test_another_worker_tells_the_same_events_while_they_come(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    one, two = workers
    model = Spoken()
    model.say("Half ", "of it, ")
    mine = playing(one, calls(("calculate", {"expression": "2+2"})), model).send(scope, NewMessage("Hello"))
    first = until(mine, is_text("of it, "))
    theirs = followed(two, scope, mine.feed.turn_id)
    assert said(until(theirs, is_text("of it, "))) == "Half of it, ", "not only at the end"
    model.say("and the rest")
    model.end()
    first += until(mine)
    again = followed(two, scope, mine.feed.turn_id)
    whole = until(again)
    assert whole == first
    assert [each.number for each in whole] == list(range(1, len(whole) + 1))
    assert said(until(theirs)) == "and the rest"
    for each in (mine, theirs, again):
        each.close()
    assert rows(one, "live_turns") == rows(one, "turn_events") == 0
    assert two.turns.slots.taken() == one.turns.slots.taken() == 0


@pytest.mark.parametrize("after", [1, 4, 7])
def test_an_ended_turn_is_told_from_any_point_as_it_was(
    workers: tuple[Parts, Parts], scope: Scope, after: int
) -> None:
    one, two = workers
    mine = playing(one, "some words to be said one by one").send(scope, NewMessage("Hello"))
    events = until(mine)
    mine.close()
    again = followed(two, scope, mine.feed.turn_id, after)
    assert until(again) == events[after:]
    again.close()
    beyond = followed(two, scope, mine.feed.turn_id, len(events))
    assert until(beyond) == [], "whoever has heard the end is told nothing more"
    beyond.close()


@with_and_without_redis
def test_the_events_of_many_turns_are_stored_in_one_transaction_at_a_time(
    workers: tuple[Parts, Parts], scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the number of streams: there is even one statement for all of them.

    And all of them end at once without waiting for each other, or for the heartbeat, in a circle.
    """
    one, _ = workers
    written = list[str]()

    def note(statement: str, parameters: Any) -> None:
        if statement.startswith("INSERT INTO turn_events"):
            written.append(statement)

    models = [Spoken() for _ in range(30)]
    chats = [scope.within(one.chats.create(scope).id) for _ in models]
    stage = [playing(one, model) for model in models]
    followers = [stage[n].send(chat, NewMessage("Hello")) for n, chat in enumerate(chats)]
    assert all(model.asked.wait(TIMEOUT_SECONDS) for model in models)
    wait_for(lambda: rows(one, "turn_events") >= len(models))
    one.turns.heartbeat.close()  # what is said now is written in one go, when it goes on
    for model in models:
        model.say("one ", "two ", "three ")
    for follower in followers:
        until(follower, is_text("three "))
    before = rows(one, "turn_events")
    with statements_noted(note, one.db):
        one.turns.heartbeat.wake()
        wait_for(lambda: rows(one, "turn_events") >= before + len(models))
    assert len(written) == 1
    for model in models:
        model.end()
    for follower in followers:
        assert until(follower)[-1].data["status"] == "completed"
        follower.close()
    assert rows(one, "turn_events") == 0
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("agentapp")]


@with_and_without_redis
def test_a_stop_is_heard_in_the_worker_that_plays_even_if_the_model_is_silent(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    one, two = workers
    model = Spoken()
    model.say("So far, ")
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    until(mine, is_text("So far, "))
    with two.binder.bound(scope):
        stopping = two.turns.stop(scope, mine.feed.turn_id)
    end = stopping.finish(TIMEOUT_SECONDS)
    assert end is not None
    assert (end.result.status, end.result.reply, end.result.error_code) == ("stopped", "So far, ", None)
    assert until(mine)[-1].event == end
    mine.close()
    stopping.close()
    assert held(one, scope) == (0, 0, 0, 0, 0)
    assert status(one, scope) == ["stopped"]
    model.end()
    again = playing(one, "fine").send(scope, NewMessage("Next"))
    assert until(again)[-1].data["status"] == "completed"
    again.close()


def shorten(parts: Parts, seconds: float) -> None:
    parts.turns.kit.leases._length = timedelta(seconds=seconds)


def move_to_another_machine(parts: Parts) -> None:
    """Others know nothing of its process then, only the leases of its turns."""
    leases = parts.turns.kit.leases
    leases._machine, leases._pid = "another-machine", 0


def test_a_long_turn_keeps_its_lease(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives its first lease several times over, while another worker looks out for the dead."""
    one, two = workers
    move_to_another_machine(one)
    hurry(monkeypatch, *workers)
    for parts in workers:
        shorten(parts, 1.0)
    two.turns.heartbeat.wake()
    model = Spoken()
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    assert model.asked.wait(TIMEOUT_SECONDS)
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        assert status(two, scope) == ["running"]
        time.sleep(0.1)
    model.say("still here")
    model.end()
    assert until(mine)[-1].data["reply"] == "still here"
    mine.close()


@with_and_without_redis
def test_a_dead_workers_turn_is_given_up_once_and_what_it_said_is_kept(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower elsewhere hears of it, also one who had heard more than was written down."""
    one, two = workers
    move_to_another_machine(one)
    hurry(monkeypatch, *workers)
    shorten(one, 1.0)
    shorten(two, 1.0)
    model = Spoken()
    model.say("Written down, ")
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    events = until(mine, is_text("Written down, "))
    wait_for(lambda: rows(one, "turn_events") > 0)
    watching = followed(two, scope, mine.feed.turn_id)
    assert until(watching, is_text("Written down, ")) == events
    one.turns.heartbeat.close()  # as good as dead: nothing is heard of it any more
    model.say("lost", " for ever")
    events += until(mine, is_text(" for ever"))
    ahead = followed(two, scope, mine.feed.turn_id, events[-1].number)
    end = until(watching)[-1]
    assert (end.kind, end.data["status"]) == ("turn_completed", "interrupted")
    assert end.data["reply"] == "Written down, "
    unheard = until(ahead)
    assert [(each.number, each.data) for each in unheard] == [(events[-1].number + 1, end.data)]
    assert status(two, scope) == ["interrupted"]
    assert held(two, scope) == (0, 0, 0, 0, 0)
    following = playing(two, "fine").send(scope, NewMessage("Anybody there?"))
    assert until(following)[-1].data["reply"] == "fine"
    model.end()  # it was not dead after all: what it says now is nobody's answer
    assert until(mine)[-1].data["status"] == "interrupted"
    for each in (mine, watching, ahead, following):
        each.close()
    assert status(two, scope) == ["interrupted", "completed"]
    assert held(two, scope) == (0, 0, 0, 0, 0)


@with_and_without_redis
def test_a_turn_that_was_taken_from_its_worker_does_not_go_on_spending(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    one, _ = workers
    model = Spoken()
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    assert model.asked.wait(TIMEOUT_SECONDS)
    one.turns.heartbeat.close()  # or it would renew the lease
    with one.db.writing() as db:
        long_ago = "UPDATE live_turns SET lease_until = '2020-01-01 00:00:00', worker = :another"
        db.execute(text(long_ago), {"another": ELSEWHERE})
    kit = one.turns.kit
    interrupt_abandoned(kit.store, kit.ends, scope, kit.leases)
    one.turns.heartbeat.wake()
    assert until(mine)[-1].data["status"] == "interrupted", "without another word of the model"
    mine.close()
    assert held(one, scope) == (0, 0, 0, 0, 0)
    model.end()


@with_and_without_redis
def test_after_the_database_was_away_nobody_is_taken_for_dead_at_once(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = workers
    move_to_another_machine(one)
    hurry(monkeypatch, *workers)
    for parts in workers:
        shorten(parts, 2.0)
    model = Spoken()
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    two.turns.heartbeat.wake()
    assert model.asked.wait(TIMEOUT_SECONDS)
    away = threading.Event()
    away.set()
    failed: Counter[str] = Counter()
    real = type(one.db).writing, type(one.db).reading

    def broken(which: int) -> Any:
        def begin(self: Any, **how: Any) -> Any:
            name = threading.current_thread().name
            if away.is_set() and name.startswith("agentapp-heartbeat"):
                failed[name] += 1
                raise StorageUnavailable("away")
            return real[which](self, **how)

        return begin

    monkeypatch.setattr(type(one.db), "writing", broken(0))
    monkeypatch.setattr(type(one.db), "reading", broken(1))
    wait_for(lambda: failed["agentapp-heartbeat"] > 4)
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


@with_and_without_redis
def test_a_stream_ends_when_its_login_does_and_nobody_elses(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = workers
    hurry(monkeypatch, *workers)
    with one.binder.bound(scope):
        _, token = one.accounts.sign_in("uma", "a long enough password")
        _, other = one.accounts.sign_in("uma", "a long enough password")
    model = Spoken()
    mine = playing(one, model).send(scope, NewMessage("Hello"), token)
    with two.binder.bound(scope):
        there = two.turns.follow(scope, mine.feed.turn_id, login=token)
        stays = two.turns.follow(scope, mine.feed.turn_id, login=other)
    assert model.asked.wait(TIMEOUT_SECONDS)
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


@pytest.mark.parametrize("grace", [0.4, TIMEOUT_SECONDS])
@with_and_without_redis
def test_a_worker_that_ends_lets_its_turns_end_or_interrupts_them_in_time(
    workers: tuple[Parts, Parts], scope: Scope, grace: float
) -> None:
    one, _ = workers
    model = Spoken()
    model.say("Half")
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    until(mine, is_text("Half"))
    assert not one.drain(grace)
    if grace == TIMEOUT_SECONDS:
        assert not one.drain(grace)
        model.say(" and half")
        model.end()
    end = until(mine)[-1]
    mine.close()
    model.end()
    whole = ("completed", "Half and half") if grace == TIMEOUT_SECONDS else ("interrupted", "Half")
    assert (end.data["status"], end.data["reply"]) == whole
    assert status(one, scope) == [whole[0]]
    assert held(one, scope) == (0, 0, 0, 0, 0)
    wait_for(lambda: one.drain(grace))


def test_a_worker_that_is_gone_from_this_machine_is_not_waited_for(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn has a lease for an hour; but its process has ended."""
    one, two = workers
    hurry(monkeypatch, *workers)
    process = subprocess.Popen(["true"])
    process.wait()
    machine, _, rest = one.turns.kit.leases.current().worker.split(".", 2)
    gone = Lease(f"{machine}.{process.pid}.{rest}", timedelta(hours=1))
    elsewhere = Lease(f"another-machine.{process.pid}.{rest}", timedelta(hours=1))
    for parts in workers:
        shorten(parts, 3600)
    other = scope.within(one.chats.create(scope).id)
    for at, lease in ((scope, gone), (other, elsewhere)):
        monkeypatch.setattr(one.turns.kit.leases, "current", lambda lease=lease: lease)
        assert isinstance(begin(one.turns.kit, at, "Hello"), Turn)
    two.turns.heartbeat.wake()
    wait_for(lambda: status(two, scope) == ["interrupted"])
    assert status(two, other) == ["running"], "of that machine nothing is known"


def test_a_worker_of_this_machine_that_is_only_slow_is_not_taken_for_dead(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by another worker, and not for the next message in the chat. Its turn is answered whole."""
    one, two = workers
    hurry(monkeypatch, two)
    model = Spoken()
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    assert model.asked.wait(TIMEOUT_SECONDS)
    one.turns.heartbeat.close()  # nothing is heard of it any more
    looks, look = [0], two.turns.live.with_lapsed_lease

    def count(*args: Any) -> Any:
        looks[0] += 1
        return look(*args)

    monkeypatch.setattr(two.turns.live, "with_lapsed_lease", count)
    with one.db.writing() as db:
        db.execute(text("UPDATE live_turns SET lease_until = '2020-01-01 00:00:00'"))
    two.turns.heartbeat.wake()
    wait_for(lambda: looks[0] >= 3)
    with two.binder.bound(scope), pytest.raises(TurnInProgress):
        two.turns.send(scope, NewMessage("Anybody there?"))
    model.say("still here")
    model.end()
    assert until(mine)[-1].data["reply"] == "still here"
    mine.close()
    assert status(two, scope) == ["completed"]


def test_leases_are_renewed_though_everything_else_hangs(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs that store events, and the transactions of turns that wait to be written."""
    one, _ = workers
    move_to_another_machine(one)
    hurry(monkeypatch, *workers)
    goes_on, hangs, renewed = threading.Event(), threading.Event(), threading.Semaphore(0)

    def hang(new: Any, worker: str) -> Any:
        hangs.set()
        goes_on.wait(TIMEOUT_SECONDS)
        return {turn.turn_id: False for turn in new}

    def renew(*args: Any) -> None:
        real_renew(*args)
        renewed.release()

    real_renew = one.turns.live.renew
    monkeypatch.setattr(one.turns.live, "write", hang)
    monkeypatch.setattr(one.turns.live, "renew", renew)
    shorten(one, 0.1)
    model = Spoken()
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    try:
        assert hangs.wait(TIMEOUT_SECONDS)
        for _ in range(3):
            assert renewed.acquire(timeout=TIMEOUT_SECONDS)
    finally:
        goes_on.set()
    model.end()
    until(mine)
    mine.close()


def test_a_turn_that_nobody_plays_is_not_kept_alive_but_given_up_by_its_own_worker(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    """It may have begun a moment ago, and somebody will play it; so it has the time of a lease."""
    one, two = workers
    length = one.turns.kit.leases.current().length.total_seconds()
    assert isinstance(begin(one.turns.kit, scope, "Hello"), Turn)
    model = Spoken()
    other = scope.within(one.chats.create(scope).id)
    played = playing(one, model).send(other, NewMessage("Hello"))
    one.turns.heartbeat.close()
    turns = one.turns
    renewing, giving_up = (
        kind(turns.live, turns.local, turns.kit.unstored, turns.kit.leases)
        for kind in (RenewLeases, GiveUpLostTurns)
    )
    with one.db.writing() as db:
        db.execute(text("UPDATE live_turns SET lease_until = '2020-01-01 00:00:00'"))
    run(one, renewing, 1000.0)
    with one.db.writing() as db:
        found = db.execute(text("SELECT session_id FROM live_turns WHERE lease_until < '2021-01-01'"))
        assert found.scalars().all() == [scope.session_id], "the one that is played was renewed"
    for now, expected in ((0.0, "running"), (length / 2, "running"), (length, "interrupted")):
        run(one, giving_up, now)
        run(two, job_of(two, InterruptAbandonedTurns), now)
        assert status(one, scope) == [expected], now
    assert status(one, other) == ["running"]
    model.end()
    until(played)
    played.close()
    assert held(one, scope) == (0, 0, 0, 0, 0)


def test_events_whose_commit_nobody_heard_of_are_stored_once_and_in_order(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the commit. The next beat has more to store by then."""
    one, two = workers
    model = Spoken()
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    assert model.asked.wait(TIMEOUT_SECONDS)
    one.turns.heartbeat.close()
    model.say("one ", "two ")
    heard = until(mine, is_text("two "))
    writing, write = job_of(one, WriteEvents), one.turns.live.write

    def break_off(*args: Any) -> Any:
        write(*args)
        raise StorageUnavailable("the connection broke off")

    with monkeypatch.context() as patch:
        patch.setattr(one.turns.live, "write", break_off)
        with pytest.raises(StorageUnavailable):
            run(one, writing, 1.0)
    theirs = followed(two, scope, mine.feed.turn_id)
    told = until(theirs, is_text("two "))
    model.say("three ")
    heard += until(mine, is_text("three "))
    for _ in range(2):
        run(one, writing, 2.0)
    told += until(theirs, is_text("three "))
    assert told == heard
    assert status(two, scope) == ["running"], "it was told while it came, and not at the end"
    again = followed(two, scope, mine.feed.turn_id)
    assert until(again, is_text("three ")) == heard
    model.end()
    for each in (mine, theirs, again):
        until(each)
        each.close()


def job_of(parts: Parts, kind: type[Any]) -> Job:
    (found,) = [scheduled.job for scheduled in parts.turns.heartbeat.jobs if isinstance(scheduled.job, kind)]
    return found


def run(parts: Parts, job: Job, now: float) -> None:
    with parts.binder.bound(RequestScope(request_id="heartbeat")):
        job.run(now)


def test_a_beat_that_takes_long_comes_less_often_but_not_too_seldom(
    workers: tuple[Parts, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    (heartbeat, _), pauses = workers[0].turns.heartbeat.threads, list[float]()
    monkeypatch.setattr(heartbeat._closing, "wait", pauses.append)
    for took in (0.0, 0.01, 0.2, 60.0):
        heartbeat._rest(busy=True, took=took, has_failed=False)
    assert pauses == [TICK_SECONDS, TICK_SECONDS, 0.8, IDLE_SECONDS]


@with_and_without_redis
def test_a_turn_that_was_taken_for_dead_and_answered_whole_is_saved(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    """In the place of what was kept of it: for its readers, the search, the next message and the budgets."""
    one, two = workers
    mine, model = taken_for_dead(workers, scope)
    model.say("and the rest")
    model.end()
    end = until(mine)[-1]
    mine.close()
    assert (end.data["status"], end.data["reply"]) == ("completed", "Half, and the rest")
    with two.binder.bound(scope):
        whole = two.chats.transcript(scope)
        assert [message.content for message in whole.messages] == ["Hello", "Half, and the rest"]
        assert [turn.status for turn in whole.turns] == ["completed"]
    other = scope.within(two.chats.create(scope).id)
    with two.binder.bound(other):
        assert len(two.chats.search(other, "rest", limit=5)) == 1
    again = followed(two, scope, mine.feed.turn_id)
    assert until(again)[-1] == end
    again.close()
    assert held(one, scope) == (0, 0, 0, 0, 0)
    assert rows(one, "charged_turns") == rows(one, "live_turns") == 0


def taken_for_dead(workers: tuple[Parts, Parts], scope: Scope) -> tuple[Subscription, Spoken]:
    """A turn that has said half, of which another worker has stored that it was interrupted."""
    one, two = workers
    model = Spoken()
    model.say("Half, ")
    mine = playing(one, model).send(scope, NewMessage("Hello"))
    until(mine, is_text("Half, "))
    watching = followed(two, scope, mine.feed.turn_id)
    until(watching, is_text("Half, "))
    watching.close()
    one.turns.heartbeat.close()
    with two.db.writing() as db:
        long_ago = "UPDATE live_turns SET lease_until = '2020-01-01 00:00:00', worker = :another"
        db.execute(text(long_ago), {"another": ELSEWHERE})
    kit = two.turns.kit
    interrupt_abandoned(kit.store, kit.ends, scope, kit.leases)
    assert status(two, scope) == ["interrupted"]
    return mine, model


@pytest.mark.parametrize("meanwhile", ["the chat went on", "it was tried again", "it is stopped"])
def test_a_turn_that_was_taken_for_dead_stays_so_if_something_else_has_happened(
    workers: tuple[Parts, Parts], scope: Scope, meanwhile: str
) -> None:
    one, two = workers
    mine, model = taken_for_dead(workers, scope)
    if meanwhile == "it is stopped":
        one.turns.local.stop(mine.feed.turn_id)
    else:
        replaced = mine.feed.turn_id if meanwhile == "it was tried again" else None
        sent = NewMessage(None if replaced else "Anybody there?", replaces=replaced)
        following = playing(two, "fine").send(scope, sent)
        assert until(following)[-1].data["status"] == "completed"
        following.close()
        model.say("and the rest")
    model.end()
    assert until(mine)[-1].data["status"] == "interrupted"
    mine.close()
    assert status(two, scope)[0] == "interrupted"
    with two.binder.bound(scope):
        assert two.chats.transcript(scope).messages[1].content == "Half, "
    assert held(two, scope) == (0, 0, 0, 0, 0)


def test_the_index_of_the_search_comes_last_so_that_no_other_job_depends_on_it(parts: Parts) -> None:
    """The rest of a beat is skipped when a job fails, and an index may be damaged."""
    *others, last = (type(scheduled.job) for scheduled in parts.turns.heartbeat.jobs)
    assert last is AddToSearchIndex
    assert InterruptAbandonedTurns in others
