"""A turn, from the message to the settled row: in order, once, and whatever goes wrong."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import event

from agentapp.agents.provider import Message, Reply
from agentapp.agents.team import Agent, Crew, LiveAgent, Team
from agentapp.agents.threaded import ThreadedDriver
from agentapp.agents.tools import tool
from agentapp.errors import ProviderGarbled, StorageUnavailable, TurnInProgress
from agentapp.isolation import Scope, UserScope
from agentapp.turn import HISTORY_CHARS, Answering, Turn, history
from agentapp.web.parts import Parts
from tests.people import EVENTS, events_of, person
from tests.scripted import Scripted, calls, hands_over


@pytest.fixture
def scope(parts: Parts) -> Scope:
    """A user with an empty chat."""
    user = parts.accounts.add("uma", "a long enough password")
    mine = UserScope(request_id="r", tenant_id=user.tenant_id, user_id=user.id)
    return mine.within(parts.chats.create(mine).id)


@pytest.fixture
def answering(parts: Parts) -> Callable[..., Answering]:
    """The app's own way of answering, with a scripted model."""

    def with_model(*answers: Any) -> Answering:
        driver = ThreadedDriver(Scripted(*answers), parts.binder, parts.answering.deadlines)
        return replace(parts.answering, driver=driver)

    return with_model


def stored(parts: Parts, scope: Scope) -> Any:
    with parts.binder.bound(scope):
        return parts.chats.transcript(scope)


@contextmanager
def counted_writes(parts: Parts) -> Iterator[list[str]]:
    """The statements that began a write transaction."""
    begun: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement == "BEGIN IMMEDIATE":
            begun.append(statement)

    event.listen(parts.db.engine, "before_cursor_execute", note)
    yield begun
    event.remove(parts.db.engine, "before_cursor_execute", note)


def test_a_turn_is_saved_as_two_messages_in_sequence(parts: Parts, scope: Scope, answering: Any) -> None:
    end = answering("Hello back").begin(scope, "Hello").finish()
    assert (end.status, end.reply, end.usage.model_calls) == ("completed", "Hello back", 1)
    whole = stored(parts, scope)
    assert [(m.seq, m.role, m.content) for m in whole.messages] == [
        (1, "user", "Hello"),
        (2, "assistant", "Hello back"),
    ]
    assert [t.status for t in whole.turns] == ["completed"]
    assert whole.chat.title == "Hello"


def test_a_turn_makes_two_write_transactions_whatever_its_length(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    service = answering(*[calls(("calculate", {"expression": "1+1"}))] * 6, "word " * 500)
    with counted_writes(parts) as begun:
        service.begin(scope, "Go on and on").finish()
    assert len(begun) == 2


def test_no_connection_is_held_while_the_model_talks(app: Flask, parts: Parts, monkeypatch: Any) -> None:
    held: list[int] = []

    def talks(call: Any) -> Any:
        for word in ("a ", "b ", "c"):
            held.append(parts.db.engine.pool.checkedout())  # type: ignore[attr-defined]
            yield word
        yield Reply("a b c")

    monkeypatch.setattr(parts.answering.driver, "_provider", Scripted(talks, talks, talks))
    ann = person(app, "ann")
    for accept in ("text/event-stream", "application/json", "text/html"):
        answer = ann.send(ann.new_chat(), "hi", {"Accept": accept})
        assert (answer.status_code, "failed" in answer.text) in ((200, False), (303, False))
    assert held == [0] * 9


def test_begin_refuses_before_anything_is_made(parts: Parts, scope: Scope, answering: Any) -> None:
    running = answering("later").begin(scope, "first")
    with pytest.raises(TurnInProgress) as refusal:
        answering("x").begin(scope, "second")
    assert refusal.value.turn_id == running.id
    running.close()
    assert [m.content for m in stored(parts, scope).messages] == ["first", "later"]


@pytest.mark.parametrize("pulled", [0, 1, 3])
def test_a_reader_who_goes_away_does_not_end_the_turn(
    parts: Parts, scope: Scope, answering: Any, pulled: int
) -> None:
    """Also one who went away before reading anything: closing must reach a turn that was never started."""
    turn = answering("The whole answer").begin(scope, "Hello")
    for _ in range(pulled):
        next(turn)
    turn.close()
    turn.close()
    whole = stored(parts, scope)
    assert [m.content for m in whole.messages] == ["Hello", "The whole answer"]
    assert whole.turns[0].status == "completed"


def test_a_turn_that_is_merely_dropped_waits_for_no_lock(parts: Parts, scope: Scope, answering: Any) -> None:
    """The garbage collector may find it while this very thread writes to the database."""
    turn = answering("The whole answer").begin(scope, "Hello")
    next(turn)
    with parts.db.writing():
        del turn
        gc.collect()
    assert stored(parts, scope).turns[0].status == "running", "its lease will end it"


def test_a_turn_is_settled_exactly_once(parts: Parts, scope: Scope, answering: Any, monkeypatch: Any) -> None:
    settled: list[str] = []
    real = parts.answering.turns.settle
    monkeypatch.setattr(
        type(parts.answering.turns), "settle", lambda self, *a: settled.append(a[1]) or real(*a)
    )
    turn = answering("ok").begin(scope, "Hello")
    list(turn)
    turn.close()
    turn.finish()
    assert settled == [turn.id]


def test_a_cut_answer_keeps_its_text_and_is_failed(parts: Parts, scope: Scope, answering: Any) -> None:
    def cut(call: Any) -> Any:
        yield "Half of "
        raise ProviderGarbled("The model's answer was cut off.")

    end = answering(cut).begin(scope, "Hello").finish()
    assert (end.status, end.reply, end.error_code) == ("failed", "Half of ", "provider-failed")
    whole = stored(parts, scope)
    assert whole.messages[1].content == "Half of "
    assert whole.turns[0].error_message == "The model's answer was cut off."


def test_a_bug_in_our_own_code_fails_the_turn_and_tells_no_details(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    end = answering(ZeroDivisionError("secret detail")).begin(scope, "Hello").finish()
    assert (end.status, end.error_code) == ("failed", "turn-failed")
    assert "secret" not in (end.error_message or "")
    assert answering("fine again").begin(scope, "Hello").finish().status == "completed"


def test_a_failed_turn_leaves_the_session_with_the_front_agent(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    assert answering(hands_over("maths"), "42").begin(scope, "one").finish().agent == "maths"
    assert answering("I stay").begin(scope, "two").finish().agent == "maths"
    broken = answering(ProviderGarbled("x"), ProviderGarbled("x")).begin(scope, "three").finish()
    assert broken.status == "failed"
    assert answering("front again").begin(scope, "four").finish().agent == "triage"


def test_a_database_that_goes_away_fails_the_turn_and_says_so(
    parts: Parts, scope: Scope, answering: Any, monkeypatch: Any
) -> None:
    turn = answering("an answer").begin(scope, "Hello")

    def away(*args: Any) -> bool:
        raise StorageUnavailable("The database cannot be reached right now.")

    monkeypatch.setattr(type(parts.answering.turns), "settle", away)
    events = [event for event in turn if event is not None]
    assert events[-1].kind == "turn_completed"
    assert events[-1].data["status"] == "failed"
    assert events[-1].data["error"]["code"] == "storage-unavailable"


def test_a_chat_deleted_meanwhile_spoils_nothing(parts: Parts, scope: Scope, answering: Any) -> None:
    turn = answering("too late").begin(scope, "Hello")
    next(turn)
    parts.chats.delete(scope)
    assert turn.finish().reply == "too late"


def test_what_no_database_can_hold_is_replaced_in_stream_and_row_alike(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    turn = answering(lambda call: iter(["nul \0, ", "half \ud83d", Reply("x")])).begin(scope, "Hello")
    texts = [event.data["text"] for event in turn if event is not None and event.kind == "text"]
    assert "".join(texts) == stored(parts, scope).messages[1].content == "nul \ufffd, half ?"


def test_events_are_numbered_without_gaps_and_the_texts_are_the_reply(app: Flask, parts: Parts) -> None:
    ann = person(app, "ann")
    events = ann.stream(ann.new_chat(), "what is 6*7?")
    assert [e["id"] for e in events] == list(range(1, len(events) + 1))
    assert events[0]["event"] == "turn_started"
    assert events[-1]["event"] == "turn_completed"
    assert "".join(e["text"] for e in events if e["event"] == "text") == events[-1]["reply"]
    assert "42" in events[-1]["reply"]


def test_the_same_key_again_is_the_same_turn(parts: Parts, scope: Scope, answering: Any) -> None:
    first = answering("once").begin(scope, "Hello", "key-1")
    first.finish()
    service = answering()  # a model that has nothing to say: asking it would fail
    again = service.begin(scope, "Hello", "key-1")
    events = [event for event in again if event is not None]
    assert again.id == first.id
    assert [e.kind for e in events] == ["turn_started", "text", "turn_completed"]
    assert events[-1].data["reply"] == "once"
    assert len(stored(parts, scope).messages) == 2


def test_activity_is_kept_for_the_page(parts: Parts, scope: Scope, answering: Any) -> None:
    answering(hands_over("maths", "sum"), calls(("calculate", {"expression": "2+2"})), "4").begin(
        scope, "2+2"
    ).finish()
    handed, used = stored(parts, scope).turns[0].activity
    assert handed == {"kind": "handed_over", "from": "triage", "to": "maths", "task": "sum"}
    assert (used["kind"], used["name"], used["input"]) == ("tool", "calculate", '{"expression": "2+2"}')
    assert "4" in used["output"]


def test_what_the_model_saw_before_is_only_this_chat(parts: Parts, scope: Scope, answering: Any) -> None:
    other = scope.within(parts.chats.create(scope).id)
    for message in ("in the other chat", "and once more there"):
        answering("one").begin(other, message).finish()
    answering("two").begin(scope, "in this chat").finish()
    model = Scripted("three")
    service = replace(parts.answering, driver=ThreadedDriver(model, parts.binder))
    service.begin(scope, "and now").finish()
    assert [m.texts for m in model.asked[0].messages] == [("in this chat",), ("two",), ("and now",)]


def test_history_keeps_the_newest_that_fit_and_begins_with_the_user() -> None:
    long = "x" * (HISTORY_CHARS // 2)
    said = (("user", long), ("assistant", long), ("user", "short"), ("user", "again"), ("assistant", "yes"))
    assert (
        history(said)
        == (
            Message("user", ("short", "again")),
            Message("assistant", ("yes",)),
        )
        or history(said)[0].role == "user"
    )
    assert sum(len(t) for m in history(said) for t in m.texts) <= HISTORY_CHARS
    assert history((("assistant", "alone"),)) == ()


@pytest.mark.parametrize(
    "trouble", ["/fail", "/fail later", "/loop", '/call calculate {"expression": 7}', "/call nothing {}"]
)
def test_after_any_trouble_the_next_request_of_anyone_works(app: Flask, trouble: str) -> None:
    ann, bob = person(app, "ann"), person(app, "bob")
    a, b = ann.new_chat(), bob.new_chat()
    ann.send(a, trouble)
    assert "hello-a" in ann.ask(a, "hello-a")["reply"]
    assert "hello-b" in bob.ask(b, "hello-b")["reply"]


def test_a_crashing_and_a_hanging_tool_end_no_turn(make_app: Any, settings: Any) -> None:
    release = threading.Event()

    @tool
    def crashes() -> str:
        """Always crashes."""
        raise MemoryError

    @tool
    def hangs() -> str:
        """Hangs."""
        release.wait(20)
        return "late"

    team = Team(Agent("solo", "Go.", (crashes, hangs)))
    app = make_app(team, replace(settings, tool_deadline=0.2))
    ann = person(app, "ann")
    chat = ann.new_chat()
    assert "crashes failed" in ann.ask(chat, "/call crashes {}")["reply"]
    assert "did not end within" in ann.ask(chat, "/call hangs {}")["reply"]
    assert "still here" in ann.ask(chat, "still here")["reply"]
    release.set()


def test_a_finished_turns_agents_are_dead(
    parts: Parts, scope: Scope, answering: Any, monkeypatch: Any
) -> None:
    built: list[weakref.ref[Any]] = []
    real = Crew.__init__

    def remember(self: Crew, *args: Any) -> None:
        real(self, *args)
        built.extend(map(weakref.ref, (self, self.front, *self.specialists)))

    monkeypatch.setattr(Crew, "__init__", remember)
    turn = answering(hands_over("maths"), "42").begin(scope, "Hello")
    turn.finish()
    gc.collect()
    assert len(built) == 5
    assert [ref() for ref in built] == [None] * 5, "the turn is still referenced, its agents must not be"


def test_a_thousand_turns_leave_nothing_behind(app: Flask, parts: Parts) -> None:
    """Scopes, agents, connections, sessions, threads and file descriptors: as many after as before."""
    ann = person(app, "ann")
    chats = [ann.new_chat() for _ in range(20)]

    def turns(count: int) -> None:
        for n in range(count):
            headers = EVENTS if n % 2 else {"Accept": "application/json"}
            message = ("what is 2*3?", "/fail", "/fail later", "hello")[n % 4]
            answer = ann.send(chats[n % len(chats)], message, headers)
            assert not (n % 2) or events_of(answer.text)[-1]["event"] == "turn_completed"

    turns(50)
    before = alive(parts)
    turns(1000)
    after = alive(parts)
    assert after == before


def alive(parts: Parts) -> dict[str, int]:
    for thread in threading.enumerate():
        if thread.name.startswith("agentapp-"):
            thread.join(5)
    gc.collect()
    objects = gc.get_objects()
    counts = {kind.__name__: sum(type(o) is kind for o in objects) for kind in (Turn, Crew, LiveAgent, Scope)}
    return counts | {
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "checked out": parts.db.engine.pool.checkedout(),  # type: ignore[attr-defined]
        "sessions": parts.db.open_readers(),
    }
