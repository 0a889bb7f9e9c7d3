"""What workers tell each other over Redis: exact, to its owner alone, and never needed.

Two apps on one database and one Redis stand for two workers. Where a heartbeat is closed, nothing can have
come through the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentapp.config import Settings
from agentapp.events import AgentStarted, Event, OtherEvent, Text, ToolCompleted, TurnStarted
from agentapp.isolation import Scope
from agentapp.storage.redis_mailboxes import KEPT_SECONDS, RedisMailboxes
from agentapp.turns.feed import Feed, Subscription
from agentapp.turns.jobs import SECONDS_WITH_BUS, FollowRemoteTurns, WriteEvents
from agentapp.turns.live_bus import MailBus
from agentapp.turns.mailboxes import Follow, Message, Owner, Piece, Stop, packed, unpacked
from agentapp.turns.passed_on import FOLLOWS_SECONDS, PassedOn
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.support.databases import migrated, only_postgresql
from tests.support.redis_server import RedisServer, redis_server
from tests.support.scripted import calls
from tests.support.scripted import scope as scope_of
from tests.support.turns import someone
from tests.support.users import person, without_limits
from tests.turns.test_heartbeat import (
    TIMEOUT_SECONDS,
    Spoken,
    followed,
    held,
    is_text,
    job_of,
    playing,
    run,
    said,
    status,
    until,
    wait_for,
)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, settings: Settings) -> Iterator[str]:
    with migrated(getattr(request, "param", "sqlite"), settings) as url:
        yield url


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One that tests may trouble, as long as they leave it running."""
    with redis_server() as running:
        yield running


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    server.flush()
    return server


@pytest.fixture
def workers(database_url: str, redis: RedisServer, settings: Settings, make_app: Any) -> tuple[Parts, Parts]:
    wanted = without_limits(replace(settings, database_url=database_url, redis_url=redis.url))
    one, two = (make_app(wanted=wanted).extensions["agentapp"] for _ in range(2))
    for parts in (one, two):
        parts.turns.bus.wake()
    wait_for(lambda: one.turns.bus.is_up and two.turns.bus.is_up)
    return one, two


@pytest.fixture
def scope(workers: tuple[Parts, Parts]) -> Scope:
    return someone(workers[0], "uma")


def silence(*workers: Parts) -> None:
    """Nothing is stored, or looked for in the database, from now on."""
    for parts in workers:
        parts.turns.heartbeat.close()


def begun(parts: Parts, scope: Scope, model: Any) -> Subscription:
    return playing(parts, model).send(scope, NewMessage("Hello"))


def numbers(events: list[Any]) -> list[int]:
    return [each.number for each in events]


def test_a_turn_is_followed_at_another_worker_without_the_database(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes late is told all of it, and who is there already is told what is new."""
    one, two = workers
    model = Spoken()
    mine = begun(one, scope, model)
    silence(one)
    model.say("Half ", "of it, ")
    heard = until(mine, is_text("of it, "))
    monkeypatch.setattr(two.turns.live, "events_after", lambda *nothing: {})
    theirs = followed(two, scope, mine.feed.turn_id)
    told = until(theirs, is_text("of it, "))
    assert told == heard
    late = followed(two, scope, mine.feed.turn_id)
    model.say("and the rest")
    model.end()
    heard += until(mine)
    for each, so_far in ((theirs, told), (late, [])):
        whole = so_far + until(each)
        assert whole == heard
        assert numbers(whole) == list(range(1, len(heard) + 1))
    for each in (mine, theirs, late):
        each.close()


def test_the_end_of_a_turn_is_told_after_it_is_stored(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = workers
    model = Spoken()
    mine = begun(one, scope, model)
    theirs = followed(two, scope, mine.feed.turn_id)
    until(theirs, lambda event: event.kind == "agent_thinking")
    silence(*workers)
    model.say("All of it")
    model.end()
    assert until(theirs)[-1].data["reply"] == "All of it"
    assert status(two, scope) == ["completed"]
    until(mine)
    for each in (mine, theirs):
        each.close()


@pytest.mark.parametrize("by", ["its user", "an admin", "deleting the chat"])
def test_a_stop_reaches_the_worker_that_plays_without_the_database(
    workers: tuple[Parts, Parts], make_app: Any, scope: Scope, by: str
) -> None:
    one, two = workers
    model = Spoken()
    model.say("So far, ")
    mine = begun(one, scope, model)
    until(mine, is_text("So far, "))
    silence(one)
    if by == "its user":
        with two.binder.bound(scope):
            two.turns.stop(scope, mine.feed.turn_id).close()
    elif by == "an admin":
        admin = person(make_app(wanted=two.settings), "ada", role="admin")
        assert admin.post(f"/admin/turns/{mine.feed.turn_id}/stop").status_code == 303
    else:
        with two.binder.bound(scope):
            two.turns.delete_chat(scope)
    end = until(mine)[-1]
    assert end.data["reply"] == "So far, "
    assert end.data["status"] == ("interrupted" if by == "deleting the chat" else "stopped")
    model.end()
    mine.close()


TROUBLES: dict[str, Callable[[RedisServer], None]] = {
    "flushed": lambda redis: redis.flush(),
    "restarted": lambda redis: redis.restart(),
    "stopped for a while": lambda redis: redis.stop(),
    "frozen for a while": lambda redis: redis.freeze(),
}
AFTER: dict[str, Callable[[RedisServer], None]] = {
    "stopped for a while": lambda redis: redis.start(),
    "frozen for a while": lambda redis: redis.thaw(),
}


@pytest.mark.parametrize("trouble", TROUBLES)
@only_postgresql
def test_whatever_happens_to_redis_every_reader_gets_every_event_once(
    workers: tuple[Parts, Parts], scope: Scope, redis: RedisServer, trouble: str
) -> None:
    """Before, during and after; one reader was there all the while, and one comes in the middle of it."""
    one, two = workers
    model, after = Spoken(), AFTER.get(trouble, lambda redis: None)
    mine = begun(one, scope, model)
    theirs = followed(two, scope, mine.feed.turn_id)
    model.say("before ")
    told = until(theirs, is_text("before "))
    TROUBLES[trouble](redis)
    try:
        model.say("meanwhile ", "and still ")
        middle = followed(two, scope, mine.feed.turn_id)
        told += until(theirs, is_text("and still "))
        told_middle = until(middle, is_text("and still "))
        if trouble == "stopped for a while":
            assert not one.turns.bus.is_up, "it has come through the database"
    finally:
        after(redis)
    wait_for(lambda: one.turns.bus.is_up and two.turns.bus.is_up)
    wait_for(lambda: heard_of(two, mine.feed.turn_id))
    silence(one)
    model.say("after")
    told += until(theirs, is_text("after"))
    model.end()
    told += until(theirs)
    told_middle += until(middle)
    heard = until(mine)
    for each in (told, told_middle):
        assert each == heard
        assert numbers(each) == list(range(1, len(heard) + 1))
    assert said(heard) == "before meanwhile and still after"
    for each in (mine, theirs, middle):
        each.close()


def heard_of(parts: Parts, turn_id: str) -> bool:
    """Whether the turn's worker tells this one of it."""
    return parts.turns.remote._feeds[turn_id].heard > 0


@pytest.mark.parametrize("trouble", ["stopped for a while", "frozen for a while"])
def test_a_stop_without_redis_is_found_in_the_database(
    workers: tuple[Parts, Parts], scope: Scope, redis: RedisServer, trouble: str
) -> None:
    one, two = workers
    model = Spoken()
    mine = begun(one, scope, model)
    assert model.asked.wait(TIMEOUT_SECONDS)
    TROUBLES[trouble](redis)
    try:
        with two.binder.bound(scope):
            stopping = two.turns.stop(scope, mine.feed.turn_id)
        end = stopping.finish(TIMEOUT_SECONDS)
    finally:
        AFTER[trouble](redis)
    assert end is not None
    assert end.result.status == "stopped"
    assert until(mine)[-1].event == end
    model.end()
    for each in (mine, stopping):
        each.close()
    assert held(one, scope) == (0, 0, 0, 0, 0)


def letter_for(parts: Parts, *messages: Message) -> None:
    """Put into its mailbox by somebody."""
    assert parts.redis is not None
    RedisMailboxes(parts.redis).put([(parts.turns.kit.leases.worker(), packed(messages))])


def violations(parts: Parts) -> int:
    return sum(parts.telemetry.counts().values())


@pytest.mark.violates
def test_events_of_somebody_else_are_refused_and_reported(workers: tuple[Parts, Parts], scope: Scope) -> None:
    one, two = workers
    model = Spoken()
    mine = begun(one, scope, model)
    theirs = followed(two, scope, mine.feed.turn_id)
    told = until(theirs, lambda event: event.kind == "agent_thinking")
    planted = Text("somebody else's secret")
    for ids in ({"tenant_id": "x"}, {"user_id": "x"}, {"session_id": "x"}):
        owner = Owner.of(scope)._replace(**ids)
        letter_for(two, Piece(mine.feed.turn_id, owner, len(told) + 1, (planted,)))
    wait_for(lambda: violations(two) == 3)
    model.say("mine")
    model.end()
    told += until(theirs)
    assert said(told) == "mine"
    assert told == until(mine)
    for each in (mine, theirs):
        each.close()
    assert violations(one) == 0


@pytest.mark.violates
def test_nobody_elses_turn_can_be_stopped_or_followed_by_a_letter(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    one, two = workers
    model = Spoken()
    mine = begun(one, scope, model)
    stranger = Owner.of(scope)._replace(user_id="x")
    for message in (
        Stop(mine.feed.turn_id, stranger),
        Follow(mine.feed.turn_id, stranger, two.turns.kit.leases.worker(), 0),
    ):
        letter_for(one, message)
    wait_for(lambda: violations(one) == 2)
    assert isinstance(one.turns.bus, MailBus)
    assert len(one.turns.bus._passed_on) == 0
    model.say("still here")
    model.end()
    assert until(mine)[-1].data["status"] == "completed"
    mine.close()


def test_a_letter_that_cannot_be_read_keeps_none_of_the_others_back(
    workers: tuple[Parts, Parts], scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = workers
    model = Spoken()
    mine = begun(one, scope, model)
    assert one.redis is not None
    me = one.turns.kit.leases.worker()
    unreadable = (
        "",
        "{",
        "[1]",
        '[{"kind": "stop"}]',
        "[" * 100_000,
        '[{"kind":"stop","turn":"t","owner":[1]}]',
    )
    RedisMailboxes(one.redis).put([(me, letter) for letter in unreadable])
    one.redis.call("XADD", one.redis.key("mail", me), "*", "another field", b"\xff")
    letter_for(one, Stop(mine.feed.turn_id, Owner.of(scope)))
    assert until(mine)[-1].data["status"] == "stopped"
    told = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(told) == len(unreadable) + 1
    model.end()
    mine.close()


def test_letters_that_come_again_or_too_late_double_nothing(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    one, two = workers
    model = Spoken()
    mine = begun(one, scope, model)
    theirs = followed(two, scope, mine.feed.turn_id)
    model.say("one ", "two ")
    heard = until(mine, is_text("two "))
    told = until(theirs, is_text("two "))
    owner, events = Owner.of(scope), tuple(each.event for each in heard)
    for first in (1, 3, len(heard)):
        letter_for(two, Piece(mine.feed.turn_id, owner, first, events[first - 1 :]))
    # What lies ahead is not taken either: it is asked for again, in its order.
    letter_for(two, Piece(mine.feed.turn_id, owner, len(heard) + 5, (Text("too early"),)))
    letter_for(one, Follow(mine.feed.turn_id, owner, two.turns.kit.leases.worker(), 0))
    model.say("three")
    model.end()
    heard += until(mine)
    told += until(theirs)
    letter_for(two, Piece(mine.feed.turn_id, owner, len(heard), (Text("after the end"),)))
    again = followed(two, scope, mine.feed.turn_id)
    assert told == heard == until(again)
    for each in (mine, theirs, again):
        each.close()


@only_postgresql
def test_a_worker_that_plays_without_redis_is_read_from_the_database(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off from Redis, and the worker where it is read is not."""
    one, two = workers
    assert one.redis is not None
    model = Spoken()
    mine = begun(one, scope, model)
    theirs = followed(two, scope, mine.feed.turn_id)
    model.say("before ")
    told = until(theirs, is_text("before "))
    one.redis.close()
    wait_for(lambda: not one.turns.bus.is_up)
    model.say("without")
    told += until(theirs, is_text("without"))
    with two.binder.bound(scope):
        two.turns.stop(scope, mine.feed.turn_id).close()
    heard = until(mine)
    assert told + until(theirs) == heard
    assert heard[-1].data["status"] == "stopped"
    model.end()
    for each in (mine, theirs):
        each.close()


def test_with_the_bus_events_are_stored_less_often_but_calls_of_the_model_at_once(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed worker loses some words then, and nothing that costs."""
    one, _ = workers
    model = Spoken()
    asks = calls(("calculate", {"expression": "2+2"}))
    hangs, goes_on = threading.Event(), threading.Event()

    def first(call: Any) -> Iterator[Any]:
        hangs.set()
        assert goes_on.wait(TIMEOUT_SECONDS)
        yield asks

    mine = playing(one, first, model).send(scope, NewMessage("Hello"))
    assert hangs.wait(TIMEOUT_SECONDS)
    silence(one)
    written, write, look = list[int](), one.turns.live.write, one.turns.live.stop_requests
    monkeypatch.setattr(one.turns.live, "write", lambda *new: [written.append(1), write(*new)][1])
    monkeypatch.setattr(one.turns.live, "stop_requests", lambda *new: [written.append(0), look(*new)][1])
    writing, now = job_of(one, WriteEvents), time.monotonic() + 1000
    run(one, writing, now)
    assert len(written) == 1
    for later in (0.25, SECONDS_WITH_BUS - 0.1):
        run(one, writing, now + later)
    assert len(written) == 1
    goes_on.set()
    assert model.asked.wait(TIMEOUT_SECONDS)
    run(one, writing, now + 0.5)
    assert written[1:] == [1], "the second call is stored at once"
    run(one, writing, now + 0.75)
    assert len(written) == 2
    model.say("words")
    until(mine, is_text("words"))
    run(one, writing, now + 1)
    assert len(written) == 2
    run(one, writing, now + 0.5 + SECONDS_WITH_BUS)
    assert written[2:] == [1]
    assert one.redis is not None
    one.redis.close()
    wait_for(lambda: not one.turns.bus.is_up)
    for later in (3.0, 3.25):
        run(one, writing, now + later)
    assert len(written) == 5, "without Redis at each beat"
    model.end()
    until(mine)
    mine.close()


def test_a_turn_that_is_heard_of_is_not_read_from_the_database_as_well(
    workers: tuple[Parts, Parts], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = workers
    model = Spoken()
    mine = begun(one, scope, model)
    theirs = followed(two, scope, mine.feed.turn_id)
    model.say("word")
    until(theirs, is_text("word"))
    silence(two)
    read, looked = list[int](), list[int]()
    monkeypatch.setattr(two.turns.live, "events_after", lambda *any: read.append(1) or {})
    alive = two.turns.live.still_running
    monkeypatch.setattr(two.turns.live, "still_running", lambda ids: [looked.append(1), alive(ids)][1])
    following, now = job_of(two, FollowRemoteTurns), time.monotonic()
    for later in (0, 0.25, 0.5):
        run(two, following, now + later)
    assert (len(read), len(looked)) in ((0, 0), (0, 1))
    run(two, following, now + 60)
    assert (len(read), len(looked)) in ((1, 1), (1, 2)), "nothing was heard of it for a minute"
    model.end()
    for each in (mine, theirs):
        until(each)
        each.close()


def test_nothing_stays_in_redis(workers: tuple[Parts, Parts], scope: Scope, redis: RedisServer) -> None:
    one, two = workers
    model = Spoken()
    mine = begun(one, scope, model)
    theirs = followed(two, scope, mine.feed.turn_id)
    model.say("a secret")
    until(theirs, is_text("a secret"))
    assert one.redis is not None
    keys = [key for key in one.redis.call("KEYS", "*") if b":cell:" not in key]  # they have no words
    assert keys
    for key in keys:
        assert 0 < one.redis.call("TTL", key) <= KEPT_SECONDS
    model.end()
    for each in (mine, theirs):
        until(each)
        each.close()
    wait_for(lambda: all(b"secret" not in one.redis.call("DUMP", key) for key in one.redis.call("KEYS", "*")))


def test_a_turn_that_nobody_follows_elsewhere_is_not_told_to_anybody(
    workers: tuple[Parts, Parts], scope: Scope
) -> None:
    one, _ = workers
    assert one.redis is not None
    mine = begun(one, scope, "some words to be said")
    until(mine)
    mine.close()
    assert one.redis.call("KEYS", one.redis.key("mail", "") + "*") == []


def test_five_hundred_followed_turns_need_no_more_connections_or_threads_than_one(
    workers: tuple[Parts, Parts], scope: Scope, redis: RedisServer
) -> None:
    one, two = workers
    feeds = list[tuple[Feed, Feed]]()
    chats = [replace(scope, session_id=f"chat-{n}") for n in range(500)]
    played = {f"turn-{n}": Feed(chat.of_turn(f"turn-{n}"), f"turn-{n}") for n, chat in enumerate(chats)}
    before = len(threading.enumerate())
    one.turns.local.feed = played.get  # type: ignore[method-assign]
    two.turns.live.worker_of = lambda scope, turn_id: one.turns.kit.leases.worker()  # type: ignore[method-assign]
    for turn_id, feed in played.items():
        there = two.turns.remote.subscribe(feed.scope, turn_id)
        two.turns.bus.follow(feed.scope, there)
        feeds.append((feed, there))
    for feed, _ in feeds:
        for n in range(20):
            feed.add(Text(f"{n} "))
    wait_for(lambda: all(there.length == 20 for _, there in feeds))
    assert all(there.events == feed.events for feed, there in feeds)
    assert len(threading.enumerate()) <= before
    clients = redis.command("CLIENT", "LIST").count(b" addr=") - 1
    assert clients <= 6, "of two workers"
    for _, there in feeds:
        two.turns.remote.unsubscribe(there)
    del one.turns.local.feed
    del two.turns.live.worker_of


def test_a_child_process_has_a_bus_of_its_own(
    workers: tuple[Parts, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = workers
    with monkeypatch.context() as patch:
        patch.setattr("agentapp.turns.live_bus.os.getpid", lambda: -1)
        assert not one.turns.bus.is_up
    assert one.turns.bus.is_up


def test_without_redis_there_is_no_bus(parts: Parts) -> None:
    names = [thread.name for thread in threading.enumerate()]
    assert not parts.turns.bus.is_up
    parts.turns.bus.wake()
    assert [thread.name for thread in threading.enumerate()] == names


EVENTS: tuple[Event, ...] = (
    TurnStarted("turn", "chat", "Grüße 🐙\u2028"),
    AgentStarted("triage"),
    Text("half a \N{OCTOPUS}"),
    ToolCompleted("call", "name", "output", failed=False, limited=True),
    OtherEvent("of_a_newer_version", {"a": [1, None, 2.5]}),
)
MESSAGES: tuple[Message, ...] = (
    Follow("turn", Owner("t", "u", "s"), "worker.1", 7),
    Stop("turn", Owner("t", "u", "s")),
    Piece("turn", Owner("t", "u", "s"), 3, EVENTS, is_over=True),
    Piece("turn", Owner("t", "u", "s"), 9, ()),
)


def test_messages_arrive_as_they_were_written() -> None:
    assert tuple(unpacked(packed(MESSAGES))) == MESSAGES
    newer = packed(MESSAGES[:1])[:-1] + ',{"kind":"of a newer version","turn":"t","owner":["t","u","s"]}]'
    assert tuple(unpacked(newer)) == MESSAGES[:1]


def test_a_feed_takes_what_is_new_and_nothing_twice_or_out_of_order() -> None:
    feed = Feed(scope_of(), "turn")
    events = [Text(f"{n} ") for n in range(6)]
    assert not feed.add_from(2, events[1:])
    assert feed.add_from(1, events[:2])
    assert feed.add_from(1, events[:1])
    assert feed.add_from(2, events[1:4])
    assert not feed.add_from(6, events[5:])
    assert feed.add_from(5, events[4:])
    assert feed.events == tuple(events)
    feed.end()
    assert feed.add_from(7, [Text("after the end")])
    assert feed.events == tuple(events)


def test_who_does_not_ask_any_more_is_told_no_more() -> None:
    passed_on, feed = PassedOn(lambda: None), Feed(scope_of(), "turn")
    passed_on.follow(feed, "worker", 0, 100.0)
    (answer,) = passed_on.pieces(100.0)
    assert answer.piece.events == (), "an answer though nothing is new"
    passed_on.has_sent([answer])
    assert passed_on.pieces(101.0) == []
    feed.add(Text("one"))
    for _ in range(2):
        (lost,) = passed_on.pieces(101.0)
        assert (lost.piece.first, lost.piece.events) == (1, (Text("one"),)), "as long as it is not sent"
    passed_on.has_sent([lost])
    assert passed_on.pieces(101.0) == []
    passed_on.follow(feed, "worker", 0, 102.0)
    assert [each.piece for each in passed_on.pieces(102.0)] == [lost.piece], "it was lost on the way"
    assert passed_on.pieces(102.1 + FOLLOWS_SECONDS) == []
    assert len(passed_on) == 0
