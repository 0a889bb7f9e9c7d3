"""A turn, from the message to the settled row: in order, once, and whatever goes wrong."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from flask import Flask
from sqlalchemy import select, update

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.prices import Prices
from agentapp.agents.provider import Message, Reply
from agentapp.agents.providers.retrying import Retrying
from agentapp.agents.team import Agent, Crew, LiveAgent, Team
from agentapp.agents.tool import tool
from agentapp.app import deadlines_of
from agentapp.errors import (
    BreakerOpen,
    BudgetExhausted,
    NotFound,
    ProviderBusy,
    ProviderGarbled,
    ProviderMisconfigured,
    ProviderRejected,
    ProviderTimeout,
    StorageUnavailable,
    TurnInProgress,
    TurnTimeout,
)
from agentapp.events import Usage
from agentapp.guardrails.admission import TurnCells
from agentapp.guardrails.cell import Key
from agentapp.isolation import Scope, UserScope
from agentapp.storage.models import GuardrailCell, LiveTurn
from agentapp.storage.write_permits import WritePermits
from agentapp.turns.ends import Settlement
from agentapp.turns.feed import Subscription
from agentapp.turns.history import MAX_HISTORY_CHARS, STEP_CHARS, history
from agentapp.turns.kit import TurnKit
from agentapp.turns.turn import Turn
from agentapp.turns.values import NewMessage, RepeatedMessage
from agentapp.web.parts import Parts
from agentapp.web.steps import steps_of
from tests.support.rounds import ROUNDS
from tests.support.scripted import SPENT, Scripted, calls, hands_over
from tests.support.times import utc_now
from tests.support.turns import ELSEWHERE, begin, someone
from tests.support.users import EVENTS, JSON, PAGE, events_of, person, sign_in, without_limits


@pytest.fixture
def scope(parts: Parts) -> Scope:
    """A user with an empty chat."""
    return someone(parts, "uma")


@pytest.fixture
def answering(parts: Parts) -> Callable[..., TurnKit]:
    """The app's own way of answering, with a scripted model."""

    def with_model(*answers: Any) -> TurnKit:
        driver = ThreadedDriver(Scripted(*answers), parts.binder, deadlines_of(parts.settings))
        return replace(parts.turns.kit, driver=driver)

    return with_model


def stored(parts: Parts, scope: Scope) -> Any:
    with parts.binder.bound(scope):
        return parts.chats.transcript(scope)


@contextmanager
def counted_writes(parts: Parts) -> Iterator[list[Any]]:
    """The permits to write that were taken, one for each transaction."""
    begun: list[Any] = []
    permits = parts.db._write_permits

    def take(seconds: float, **rest: Any) -> None:
        begun.append(seconds)
        WritePermits.take(permits, seconds, **rest)

    with mock.patch.object(permits, "take", take):
        yield begun


def test_a_turn_is_saved_as_two_messages_in_sequence(parts: Parts, scope: Scope, answering: Any) -> None:
    end = begin(answering("Hello back"), scope, "Hello").finish()
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
        begin(service, scope, "Go on and on").finish()
    assert len(begun) == 2


def test_no_connection_is_held_while_the_model_talks(app: Flask, parts: Parts, monkeypatch: Any) -> None:
    held: list[int] = []
    followers = [1]

    def talks(call: Any) -> Any:
        for word in ("a ", "b ", "c"):
            ends = time.monotonic() + (0 if any(held) else 3)  # that one is held need not be seen twice
            while len(parts.turns.subscriptions) < followers[0] and time.monotonic() < ends:
                time.sleep(0.01)
            # The heartbeat has one now and then, for a moment.
            while (count := parts.db.connections_in_use()) and time.monotonic() < ends:
                time.sleep(0.01)
            held.append(count)
            yield word
        yield Reply("a b c")

    monkeypatch.setattr(parts.turns.kit.driver, "_provider", Scripted(talks, talks, talks, talks))
    ann = person(app, "ann")
    for accept in ("text/event-stream", "application/json", "text/html"):
        answer = ann.send(ann.new_chat(), "hi", {"Accept": accept})
        assert (answer.status_code, "failed" in answer.text) in ((200, False), (303, False))
    chat, second = ann.new_chat(), sign_in(app, "ann")
    followers[0] = 2
    with ThreadPoolExecutor(2) as pool:  # one of them joins the other's turn, and waits as well
        both = [pool.submit(who.send, chat, "hi", JSON, idempotency_key="k") for who in (ann, second)]
    assert [answer.result().json["reply"] for answer in both] == ["a b c"] * 2
    assert held == [0] * 12


def test_begin_refuses_before_anything_is_made(parts: Parts, scope: Scope, answering: Any) -> None:
    running = begin(answering("later"), scope, "first")
    with pytest.raises(TurnInProgress) as refusal:
        begin(answering("x"), scope, "second")
    assert refusal.value.turn_id == running.id
    running.finish()
    assert [m.content for m in stored(parts, scope).messages] == ["first", "later"]


@pytest.mark.parametrize("pulled", [0, 1, 3])
def test_a_reader_who_goes_away_does_not_end_the_turn(
    parts: Parts, scope: Scope, answering: Any, pulled: int
) -> None:
    """Also one who went away before reading anything."""
    follower = replace(parts.turns, kit=answering("The whole answer")).send(scope, NewMessage("Hello"))
    for _ in range(pulled):
        next(follower)
    follower.close()
    follower.close()
    assert parts.turns.local.wait(10)
    whole = stored(parts, scope)
    assert [m.content for m in whole.messages] == ["Hello", "The whole answer"]
    assert whole.turns[0].status == "completed"


def test_a_turn_that_is_merely_dropped_waits_for_no_lock(parts: Parts, scope: Scope, answering: Any) -> None:
    """The garbage collector may find it while this very thread writes to the database."""
    turn = begin(answering("The whole answer"), scope, "Hello")
    next(turn)
    with parts.db.writing():
        del turn
        gc.collect()
    assert stored(parts, scope).turns[0].status == "running", "its lease will end it"


def test_a_turn_is_settled_exactly_once(parts: Parts, scope: Scope, answering: Any, monkeypatch: Any) -> None:
    settled: list[str] = []
    real = Settlement.store
    monkeypatch.setattr(Settlement, "store", lambda self: settled.append(self.turn.id) or real(self))
    turn = begin(answering("ok"), scope, "Hello")
    list(turn)
    turn.finish()
    assert settled == [turn.id]


def test_a_cut_answer_keeps_its_text_and_is_failed(parts: Parts, scope: Scope, answering: Any) -> None:
    def cut(call: Any) -> Any:
        yield "Half of "
        raise ProviderGarbled("The model's answer was cut off.")

    end = begin(answering(cut), scope, "Hello").finish()
    assert (end.status, end.reply, end.error_code) == ("failed", "Half of ", "provider-failed")
    whole = stored(parts, scope)
    assert whole.messages[1].content == "Half of "
    assert whole.turns[0].result.error_message == "The model's answer was cut off."


def test_a_bug_in_our_own_code_fails_the_turn_and_tells_no_details(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    end = begin(answering(ZeroDivisionError("secret detail")), scope, "Hello").finish()
    assert (end.status, end.error_code) == ("failed", "turn-failed")
    assert "secret" not in (end.error_message or "")
    assert begin(answering("fine again"), scope, "Hello").finish().status == "completed"


def test_a_failed_turn_leaves_the_session_with_the_front_agent(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    assert begin(answering(hands_over("maths"), "42"), scope, "one").finish().agent == "maths"
    assert begin(answering("I stay"), scope, "two").finish().agent == "maths"
    broken = begin(answering(ProviderGarbled("x"), ProviderGarbled("x")), scope, "three").finish()
    assert broken.status == "failed"
    assert begin(answering("front again"), scope, "four").finish().agent == "triage"


def test_a_database_that_goes_away_fails_the_turn_and_says_so(
    parts: Parts, scope: Scope, answering: Any, monkeypatch: Any
) -> None:
    turn = begin(answering("an answer"), scope, "Hello")

    def away(*args: Any) -> bool:
        raise StorageUnavailable("The database cannot be reached right now.")

    with monkeypatch.context() as patch:
        patch.setattr(Settlement, "store", away)
        patch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", (0.0, 0.0))
        events = [event for event in turn if event is not None]
    parts.turns.heartbeat.wake()  # the database is back, and the end of the turn can be stored
    assert events[-1].kind == "turn_completed"
    assert events[-1].data["status"] == "failed"
    assert events[-1].data["error"]["code"] == "storage-unavailable"


def test_a_chat_deleted_meanwhile_spoils_nothing(parts: Parts, scope: Scope, answering: Any) -> None:
    turn = begin(answering("too late"), scope, "Hello")
    next(turn)
    parts.turns.delete_chat(scope)
    end = turn.finish()
    assert (end.status, end.reply) == ("interrupted", "too late"), "nothing of it was saved"


def test_what_no_database_can_hold_is_replaced_in_stream_and_row_alike(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    turn = begin(answering(lambda call: iter(["nul \0, ", "half \ud83d", Reply("x")])), scope, "Hello")
    texts = [event.data["text"] for event in turn if event is not None and event.kind == "text"]
    assert "".join(texts) == stored(parts, scope).messages[1].content == "nul \ufffd, half \ufffd"


def test_events_are_numbered_without_gaps_and_the_texts_are_the_reply(app: Flask, parts: Parts) -> None:
    ann = person(app, "ann")
    events = ann.stream(ann.new_chat(), "what is 6*7?")
    assert [e["id"] for e in events] == list(range(1, len(events) + 1))
    assert events[0]["event"] == "turn_started"
    assert events[-1]["event"] == "turn_completed"
    assert "".join(e["text"] for e in events if e["event"] == "text") == events[-1]["reply"]
    assert "42" in events[-1]["reply"]


def test_the_same_key_again_is_the_same_turn_with_the_same_events(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    script = (hands_over("maths", "sum"), calls(("calculate", {"expression": "2+2"})), "That is 4")
    first = begin(answering(*script), scope, "Hello", "key-1")
    events = [(event.number, event.kind, event.data) for event in first if event is not None]
    service = answering()  # a model that has nothing to say: asking it would fail
    assert begin(service, scope, "Hello", "key-1") == RepeatedMessage(first.id)
    with parts.binder.bound(scope):
        again = replace(parts.turns, kit=service).send(scope, NewMessage("Hello", "key-1"))
    assert [(event.number, event.kind, event.data) for event in again if event is not None] == events
    again.close()
    assert len(stored(parts, scope).messages) == 2


def test_activity_is_kept_for_the_page(parts: Parts, scope: Scope, answering: Any) -> None:
    begin(
        answering(hands_over("maths", "sum"), calls(("calculate", {"expression": "2+2"})), "4"), scope, "2+2"
    ).finish()
    handed, used = steps_of(stored(parts, scope).turns[0].activity)
    assert handed == {"kind": "handed_over", "from": "triage", "to": "maths", "task": "sum"}
    assert (used["kind"], used["name"], used["input"]) == ("tool", "calculate", '{"expression": "2+2"}')
    assert "4" in used["output"]


def test_what_the_model_saw_before_is_only_this_chat(parts: Parts, scope: Scope, answering: Any) -> None:
    other = scope.within(parts.chats.create(scope).id)
    for message in ("in the other chat", "and once more there"):
        begin(answering("one"), other, message).finish()
    begin(answering("two"), scope, "in this chat").finish()
    model = Scripted("three")
    service = replace(parts.turns.kit, driver=ThreadedDriver(model, parts.binder))
    begin(service, scope, "and now").finish()
    assert [m.texts for m in model.asked[0].messages] == [("in this chat",), ("two",), ("and now",)]


def test_history_keeps_the_newest_that_fit_and_begins_with_the_user() -> None:
    long = "x" * (MAX_HISTORY_CHARS // 2)
    said = (("user", long), ("assistant", long), ("user", "short"), ("user", "again"), ("assistant", "yes"))
    newest = Message("user", ("short", "again")), Message("assistant", ("yes",))
    assert history(said) == newest, "the answer goes with its question"
    assert history(said[2:]) == newest
    assert history((("assistant", "alone"),)) == ()
    assert history((("user", "x" * (MAX_HISTORY_CHARS + 1)),)) == ()


def test_a_long_conversation_begins_with_the_same_message_for_several_turns() -> None:
    """Or no turn would find what the provider's cache has kept of the turn before."""
    said: list[tuple[str, str]] = []
    begins: list[str] = []
    for number in range(300):
        said += [("user", f"{number} " + "x" * 500), ("assistant", "y" * 500)]
        kept = history(tuple(said))
        begins.append(kept[0].texts[0])
        length = sum(len(text) for message in kept for text in message.texts)
        assert length <= MAX_HISTORY_CHARS
        assert length >= min(sum(len(text) for _, text in said), MAX_HISTORY_CHARS - STEP_CHARS - 1_100)
    turns_a_step = STEP_CHARS // 1_000
    assert begins[:59] == begins[:1] * 59
    assert len(set(begins)) <= 2 + 240 // (turns_a_step - 1)


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
    turn = begin(answering(hands_over("maths"), "42"), scope, "Hello")
    turn.finish()
    gc.collect()
    assert len(built) == 5
    assert [ref() for ref in built] == [None] * 5, "the turn is still referenced, its agents must not be"


def test_many_turns_leave_nothing_behind(make_app: Any, settings: Any) -> None:
    """Scopes, agents, connections, sessions, seats, threads and file descriptors: as many after as before."""
    app = make_app(wanted=without_limits(settings))
    parts: Parts = app.extensions["agentapp"]
    ann = person(app, "ann")
    chats = [ann.new_chat() for _ in range(20)]

    def turns(count: int) -> None:
        for n in range(count):
            headers = EVENTS if n % 2 else {"Accept": "application/json"}
            message = ("what is 2*3?", "/fail", "/fail later", "hello")[n % 4]
            answer = ann.send(chats[n % len(chats)], message, headers)
            assert answer.status_code in (200, 502), f"this was no turn: {answer.text}"
            assert not (n % 2) or events_of(answer.text)[-1]["event"] == "turn_completed"

    turns(40)
    before = alive(parts)
    turns(80 * ROUNDS)
    ends = time.monotonic() + 5
    while (after := alive(parts)) != before and time.monotonic() < ends:
        time.sleep(0.05)  # the heartbeat may just have looked at the last turn
    assert after == before


class Told:
    """The cells of one scope, as they are now."""

    def __init__(self, service: TurnKit, parts: Parts, scope: Scope) -> None:
        guardrails = service.guardrails
        with parts.binder.bound(scope):
            cells = TurnCells(*(guardrails.registry.get(key) for key in guardrails.keys(scope)))
        now = guardrails.clock()
        self.session, self.user, self.tenant, self.provider = cells
        self.failures = {
            "session": cells.session.breaker.failures,
            "user": cells.user.breaker.failures,
            "provider": cells.provider.outage.users_failing(now),
        }
        self.used = tuple(cell.budget.used(now) for cell in cells[:3])
        self.reserved = tuple(cell.budget.holds.amount(now) for cell in cells[:3])
        self.running = (cells.user.bulkhead.holds.count(now), cells.tenant.bulkhead.holds.count(now))


@pytest.fixture
def told(parts: Parts, scope: Scope) -> Callable[[], Told]:
    return lambda: Told(parts.turns.kit, parts, scope)


@pytest.fixture
def clock(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time as the guardrails see it, which moves only when it is told to."""
    now = [1_800_000_000.0]
    monkeypatch.setattr(parts.turns.kit.guardrails, "clock", lambda: now[0])
    return now


def declines() -> Reply:
    return Reply("", usage=SPENT, stop_reason="refusal")


def half_then_garbled(call: Any) -> Any:
    yield "Half of "
    raise ProviderGarbled("The model's answer was cut off.")


def rejected_for_its_own_sake() -> ProviderRejected:
    error = ProviderRejected("too long")
    error.blame = "turn"
    return error


NOBODYS = {"session": 0, "user": 0, "provider": 0}
ITS_OWN = {"session": 1, "user": 1, "provider": 0}
THE_MODELS = {"session": 1, "user": 1, "provider": 1}


@pytest.mark.parametrize(
    ("answers", "code", "failures"),
    [
        (["fine"], None, NOBODYS),
        ([ProviderBusy("overloaded")], "provider-failed", THE_MODELS),
        ([ProviderTimeout("late")], "provider-timeout", THE_MODELS),
        ([TurnTimeout("far too late")], "provider-timeout", ITS_OWN),
        ([ProviderGarbled("???")], "provider-failed", THE_MODELS),
        ([half_then_garbled], "provider-failed", THE_MODELS),
        ([lambda call: iter(["no end"])], "provider-failed", THE_MODELS),
        ([Reply("", usage=SPENT)], "provider-failed", ITS_OWN),
        ([ProviderRejected("418")], "provider-failed", THE_MODELS),
        ([ProviderMisconfigured("wrong key")], "provider-failed", NOBODYS),
        ([rejected_for_its_own_sake()], "provider-failed", ITS_OWN),
        ([ZeroDivisionError("a bug")], "turn-failed", ITS_OWN),
        ([calls(("calculate", {"expression": "1+1"}))] * 12, "out-of-steps", ITS_OWN),
        ([declines()], "provider-failed", NOBODYS),
        ([Reply("", calls(("calculate", {})).calls, Usage(50_000, 0, 1))], "budget-exhausted", NOBODYS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_failure_is_held_against_those_whose_it_is(
    scope: Scope, answering: Any, told: Any, answers: list[Any], code: str | None, failures: Any
) -> None:
    """The chat and its user, the model too, or nobody: what is the person's wish or limit is no failure."""
    end = begin(answering(*answers), scope, "Hello").finish()
    assert end.error_code == code
    assert told().failures == failures


def test_a_failure_of_nobody_neither_counts_nor_makes_the_others_forgotten(
    scope: Scope, answering: Any, told: Any
) -> None:
    broken = ProviderGarbled("x")
    for answer in (broken, broken, declines()):
        begin(answering(answer), scope, "Hello").finish()
    assert told().failures["session"] == 2
    begin(answering(broken), scope, "Hello").finish()
    with pytest.raises(BreakerOpen) as refusal:
        begin(answering("never asked"), scope, "Hello")
    assert (refusal.value.scope, refusal.value.used) == ("session", 3)


def test_an_answer_makes_the_failures_before_it_forgotten(scope: Scope, answering: Any, told: Any) -> None:
    for answer in (ProviderGarbled("x"), ProviderGarbled("x"), "fine"):
        begin(answering(answer), scope, "Hello").finish()
    assert told().failures["session"] == told().failures["user"] == 0


def test_a_tool_that_fails_is_no_failure_of_the_turn(scope: Scope, answering: Any, told: Any) -> None:
    begin(
        answering(calls(("calculate", {"expression": "1/0"}), ("unheard_of", {})), "so be it"), scope, "Hello"
    ).finish()
    assert told().failures == NOBODYS


def priced(service: TurnKit) -> TurnKit:
    """With 1 millionth of a dollar for a token in and 2 for one out."""
    return replace(service, prices=Prices([("claude", 1.0, 2.0)]), model="claude")


def test_every_call_is_charged_to_the_chat_the_user_and_the_tenant(
    scope: Scope, answering: Any, told: Any
) -> None:
    """Those that failed and those that were tried again too: the provider wants its money for them."""
    failed = [ProviderBusy("overloaded", usage=Usage(n, 0, 1)) for n in (100, 1_000)]
    model = Scripted(
        failed[0],
        hands_over("maths"),  # the second try of the first call
        failed[1],
        ProviderRejected("no", usage=Usage(10_000, 0, 1)),  # and so triage goes on
        calls(("calculate", {"expression": "1+1"})),
        ProviderRejected("no", usage=Usage(5_000, 50, 1)),
    )
    service = priced(answering())
    retrying = Retrying(model, sleep=lambda seconds: None)
    service = replace(service, driver=ThreadedDriver(retrying, service.driver._binder))
    end = begin(service, scope, "Hello").finish()
    assert end.status == "failed"
    assert end.usage == Usage(16_120, 60, 6)
    assert told().used == (16_180, 16_240, 16_240)
    assert end.cost_usd == 16_240 / 1_000_000
    assert told().reserved == (0, 0, 0)
    begin(priced(answering("fine")), scope, "Again").finish()
    assert told().used == (16_195, 16_260, 16_260), "10 in and 5 out more"


def test_what_a_turn_may_need_is_reserved_until_it_ends(scope: Scope, answering: Any, told: Any) -> None:
    turn = begin(priced(answering("fine")), scope, "Hello")
    assert told().reserved == (50_000, 100_000, 100_000), "all its tokens, at the dearest price"
    assert told().running == (1, 1)
    turn.finish()
    assert (told().reserved, told().running) == ((0, 0, 0), (0, 0))


@pytest.mark.parametrize(
    ("wanted", "left"),
    [({"session_tokens": 30}, 30), ({"user_day_microusd": 40}, 20), ({"tenant_month_microusd": 50}, 25)],
)
def test_a_turn_for_which_less_is_left_gets_what_is_left(
    make_app: Any, settings: Any, wanted: dict[str, int], left: int
) -> None:
    """And the one after it nothing, and is told whose limit it was."""
    app = make_app(wanted=replace(settings, **wanted))
    parts: Parts = app.extensions["agentapp"]
    user = parts.accounts.add("uma", "a long enough password")
    mine = UserScope(request_id="r", tenant_id=user.tenant_id, user_id=user.id)
    scope = mine.within(parts.chats.create(mine).id)
    model = Scripted(calls(("calculate", {"expression": "1+1"})), *[Reply("x", usage=Usage(30, 15, 1))] * 2)
    service = replace(priced(parts.turns.kit), driver=ThreadedDriver(model, parts.binder))
    begin(service, scope, "Hello").finish()
    assert model.asked[0].max_tokens == left
    with pytest.raises(BudgetExhausted) as refusal:
        begin(service, scope, "Hello")
    assert refusal.value.scope == next(iter(wanted)).split("_")[0]
    assert Told(service, parts, scope).reserved == (0, 0, 0)


def test_calls_of_a_tool_are_counted_over_all_turns_of_a_chat(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    ran: list[int] = []

    @tool(per_session=3)
    def counts() -> int:
        """Counts."""
        ran.append(1)
        return len(ran)

    def twice(to: Scope) -> list[bool]:
        service = answering(calls(("counts", {}), ("counts", {})), "ok")
        service = replace(service, team=Team(Agent("solo", "Go.", (counts,))))
        begin(service, to, "Hello").finish()
        return [used["limited"] for used in steps_of(stored(parts, to).turns[-1].activity)]

    assert twice(scope) == [False, False]
    assert twice(scope) == [False, True]
    assert twice(scope) == [True, True]
    assert twice(scope.within(parts.chats.create(scope).id)) == [False, False], "another chat has its own"
    assert len(ran) == 5


def finished(follower: Subscription) -> None:
    follower.finish()
    follower.close()


def closed_at_once(follower: Subscription) -> None:
    follower.close()


def closed_in_the_middle(follower: Subscription) -> None:
    next(follower)
    next(follower)
    follower.close()
    follower.close()


def read_but_for_its_end(follower: Subscription) -> None:
    """As a reader does who knows that `turn_completed` is the last."""
    while (event := next(follower)) is None or event.kind != "turn_completed":
        pass
    follower.close()


ENDS = [finished, closed_at_once, closed_in_the_middle, read_but_for_its_end]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("answer", ["fine", ProviderGarbled("x"), ZeroDivisionError("x")], ids=type)
def test_a_seat_is_given_back_once_however_a_stream_ends(
    parts: Parts, scope: Scope, answering: Any, end: Callable[[Subscription], None], answer: Any
) -> None:
    seats = parts.turns.slots
    follower = replace(parts.turns, kit=answering(answer)).send(scope, NewMessage("Hello"))
    assert seats.taken() == 1
    end(follower)
    assert seats.taken() == 0
    del follower
    gc.collect()
    assert seats.taken() == 0, "nor once more when it is collected"


def test_a_stream_that_is_dropped_gives_its_seat_back_when_it_is_collected(
    parts: Parts, scope: Scope, answering: Any
) -> None:
    for pulled in (0, 1, 3):
        other = scope.within(parts.chats.create(scope).id)
        follower = replace(parts.turns, kit=answering("fine")).send(other, NewMessage("Hello"))
        for _ in range(pulled):
            next(follower)
        assert parts.turns.slots.taken() == 1
        del follower
        gc.collect()
        assert parts.turns.slots.taken() == 0


def test_a_turn_that_was_refused_keeps_no_seat(
    parts: Parts, scope: Scope, answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = begin(answering("later"), scope, "first")
    stage = replace(parts.turns, kit=answering("x"))
    with pytest.raises(TurnInProgress):
        stage.send(scope, NewMessage("second"))
    with pytest.raises(NotFound):
        stage.send(scope.within("no-such-chat"), NewMessage("second"))
    with pytest.raises(NotFound), parts.binder.bound(scope):
        stage.follow(scope, "no-such-turn")
    assert parts.turns.slots.taken() == 0
    running.finish()
    for error in (ZeroDivisionError, KeyboardInterrupt):

        def fails(*args: Any, error: type[BaseException] = error) -> Any:
            raise error

        monkeypatch.setattr(type(parts.turns.kit.store), "chat", fails)
        with pytest.raises(error):
            stage.send(scope, NewMessage("third"))
    assert parts.turns.slots.taken() == 0


def test_a_turn_that_is_only_told_again_takes_nothing_for_longer_than_the_telling(
    parts: Parts, scope: Scope, answering: Any, told: Any
) -> None:
    begin(answering("once"), scope, "Hello", "key").finish()
    before = told()
    for end in ENDS:
        with parts.binder.bound(scope):
            again = replace(parts.turns, kit=answering()).send(scope, NewMessage("Hello", "key"))
        assert parts.turns.slots.taken() == 1, "it needs a thread as any other does"
        end(again)
        assert parts.turns.slots.taken() == 0
    after = told()
    assert (after.used, after.reserved, after.running) == (before.used, before.reserved, before.running)
    assert after.session.bucket == before.session.bucket, "nor does it count against a rate"


def test_when_all_seats_are_taken_the_next_is_told_so_and_pages_still_come(
    make_app: Any, settings: Any
) -> None:
    app = make_app(wanted=replace(settings, threads=9, threads_reserved=8))
    parts: Parts = app.extensions["agentapp"]
    ann, bob = person(app, "ann"), person(app, "bob")
    theirs = bob.new_chat()
    user = parts.accounts.add("uma", "a long enough password")
    mine = UserScope(request_id="r", tenant_id=user.tenant_id, user_id=user.id)
    held = parts.turns.send(mine.within(parts.chats.create(mine).id), NewMessage("Hello"))
    for headers in (JSON, EVENTS):
        refused = ann.send(ann.new_chat(), "Hello", headers)
        assert refused.status_code == 503
        assert (refused.json["code"], refused.json["scope"]) == ("busy", "server")
        assert int(refused.headers["Retry-After"]) == refused.json["retry_after"] >= 1
    for path in ("/chat", f"/chat/{theirs}", f"/chat/{theirs}/export.json", "/livez", "/readyz"):
        assert bob.browser.get(path, headers=PAGE).status_code == 200, path
    held.close()
    assert "hello-b" in bob.ask(theirs, "hello-b")["reply"]
    assert parts.turns.slots.taken() == 0


def test_a_chat_deleted_while_it_answers_gives_back_and_still_pays(
    parts: Parts, scope: Scope, answering: Any, told: Any, clock: list[float]
) -> None:
    """Another turn of the same user keeps what is its own: nothing is given back twice."""
    other = begin(priced(answering("fine")), scope.within(parts.chats.create(scope).id), "stays")
    turn = begin(priced(answering("too late")), scope, "Hello")
    next(turn)
    assert told().running == (2, 2)
    parts.turns.delete_chat(scope)
    assert (told().running, told().reserved[1:]) == ((1, 1), (100_000, 100_000))
    assert turn.finish().reply == "too late"
    assert (told().running, told().reserved[1:]) == ((1, 1), (100_000, 100_000))
    assert told().used[1:] == (20, 20), "10 tokens in, 5 out"
    other.finish()
    assert (told().running, told().reserved[1:], told().used[1:]) == ((0, 0), (0, 0), (40, 40))
    with parts.db.writing() as db:
        left = db.scalars(select(GuardrailCell.id).where(GuardrailCell.scope == "session")).all()
    assert left == [other.scope.session_id], "the deleted chat's own cell is gone with it"


def test_deleting_the_chat_of_a_probe_is_stopping_it(parts: Parts, scope: Scope, answering: Any) -> None:
    """Who does that before the first word does not get the next probe."""
    guardrails = parts.turns.kit.guardrails
    down = guardrails.clock()
    guardrails.registry.update(
        guardrails.keys(scope)[3], lambda cell: replace(cell, breaker=cell.breaker.tripped(down))
    )
    other = scope.within(parts.chats.create(scope).id)
    turn = begin(answering("too late"), scope, "Hello")
    parts.turns.delete_chat(scope)
    with pytest.raises(BreakerOpen):
        begin(answering("never"), other, "Again")
    turn.finish()


def lose(parts: Parts, turn: Turn) -> None:
    """As if the turn's worker had died a while ago."""
    with parts.db.writing() as db:
        over = {"worker": ELSEWHERE, "lease_until": utc_now() - timedelta(seconds=1)}
        db.execute(update(LiveTurn).where(LiveTurn.turn_id == turn.id).values(**over))


@pytest.mark.parametrize("late", ["while the next runs", "after the next", "never"])
def test_a_dead_turn_is_given_back_once_when_the_next_message_comes(
    parts: Parts, scope: Scope, answering: Any, told: Any, clock: list[float], late: str
) -> None:
    """And if it was not dead after all, what it went on to spend is charged, and no more than that."""
    other = begin(priced(answering("fine")), scope.within(parts.chats.create(scope).id), "stays")
    dead = begin(priced(answering("from the dead")), scope, "Hello")
    lose(parts, dead)
    assert (told().running, told().reserved) == ((2, 2), (50_000, 200_000, 200_000))
    following = begin(priced(answering("alive")), scope, "Anybody there?")
    both = ((2, 2), (50_000, 200_000, 200_000))  # the other and the following one
    assert (told().running, told().reserved) == both
    if late == "while the next runs":
        dead.finish()
        assert (told().running, told().reserved, told().used) == (*both, (15, 20, 20))
    following.finish()
    if late == "after the next":
        dead.finish()
    first = dead._started.reservation
    assert first.first_call_tokens > 50, "the instructions and tools of the agent are in it"
    lost = (first.first_call_tokens, first.first_call_microusd, first.first_call_microusd)
    spent = (15 + lost[0], 20 + lost[1], 20 + lost[2]) if late == "never" else (30, 40, 40)
    assert (told().running, told().reserved) == ((1, 1), (0, 100_000, 100_000))
    assert told().used == spent
    other.finish()
    assert (told().running, told().reserved) == ((0, 0), (0, 0, 0))
    statuses = [turn.status for turn in stored(parts, scope).turns]
    assert statuses == ["interrupted", "completed"]


def test_a_refused_message_leaves_a_dead_turn_to_the_next_that_is_let_in(
    parts: Parts, scope: Scope, answering: Any, told: Any, clock: list[float]
) -> None:
    """The refusal undoes all of its transaction, so that the dead turn is not half given back."""
    dead = begin(answering("x"), scope, "Hello")
    lose(parts, dead)
    parts.turns.kit.guardrails.registry.update(
        Key("user", scope.user_id), lambda cell: replace(cell, breaker=cell.breaker.force("open"))
    )
    for _ in range(2):
        with pytest.raises(BreakerOpen):
            begin(answering("x"), scope, "Hello")
        assert told().running == (1, 1)
    parts.turns.kit.guardrails.registry.update(
        Key("user", scope.user_id), lambda cell: replace(cell, breaker=cell.breaker.reset())
    )
    begin(answering("x"), scope, "Hello").finish()
    assert told().running == (0, 0)


@pytest.mark.parametrize("result", ["from the dead", ProviderGarbled("x")], ids=["works", "fails"])
def test_a_probe_whose_turn_died_makes_room_for_the_next(
    parts: Parts, scope: Scope, answering: Any, told: Any, clock: list[float], result: Any
) -> None:
    """And what the dead one has to say in the end is told to no breaker."""
    for _ in range(3):
        begin(answering(ProviderGarbled("x")), scope, "Hello").finish()
    with pytest.raises(BreakerOpen):
        begin(answering("x"), scope, "Hello")
    clock[0] += 31
    dead = begin(answering(result), scope, "Hello")
    assert told().session.breaker.probed is not None
    lose(parts, dead)
    probe = begin(answering("all is well"), scope, "Hello")
    before = told().session.breaker
    assert before.opened is not None
    dead.finish()
    assert told().session.breaker == before
    probe.finish()
    assert told().session.breaker.state(clock[0]) == "closed"


def test_a_probe_that_is_nobodys_failure_makes_room_for_the_next(
    scope: Scope, answering: Any, told: Any, clock: list[float]
) -> None:
    for _ in range(3):
        begin(answering(ProviderGarbled("x")), scope, "Hello").finish()
    clock[0] += 31
    begin(answering(declines()), scope, "Hello").finish()
    assert told().session.breaker.state(clock[0]) == "half-open"
    begin(answering("all is well"), scope, "Hello").finish()
    assert told().session.breaker.state(clock[0]) == "closed"


def descriptors() -> set[tuple[str, str]]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the directory itself is gone by now
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def idle_connections(parts: Parts) -> set[tuple[str, str]]:
    """The pool keeps as many as were ever needed at once, up to its size: which is no leak."""
    name = str(parts.db.engine.url.database)
    return {each for each in descriptors() if each[1].startswith(name)}


def alive(parts: Parts) -> dict[str, int]:
    for thread in threading.enumerate():
        if thread.name.startswith("agentapp-") and not thread.name.startswith("agentapp-heartbeat"):
            thread.join(5)
    gc.collect()
    objects = gc.get_objects()
    counts = {kind.__name__: sum(type(o) is kind for o in objects) for kind in (Turn, Crew, LiveAgent, Scope)}
    return counts | {
        "threads": threading.active_count(),
        "descriptors": len(descriptors() - idle_connections(parts)),
        "checked out": parts.db.connections_in_use(),
        "sessions": parts.db.open_readers(),
        "seats": parts.turns.slots.taken(),
        "turns": len(parts.turns.local.all()),
    }
