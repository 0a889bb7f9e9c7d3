"""Each violation of isolation, planted: it is caught, counted once, told, and the score falls."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import or_, select

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.team import Crew, Team
from agentapp.errors import ForeignEvents
from agentapp.isolation import RequestScope, Scope
from agentapp.storage import turn_statements
from agentapp.storage.models import Message
from agentapp.storage.owned import OWNER, in_session
from agentapp.turns.feed import Feed
from agentapp.turns.live_agents import KEPT_SECONDS
from agentapp.turns.local import LocalTurns
from agentapp.web.hooks import chat_scope, user_scope
from agentapp.web.parts import Parts
from agentapp.web.sse import EventStream
from tests.support.metrics import audited, counted, run_job
from tests.support.server_users import wait_for
from tests.support.turns import begin, someone
from tests.support.users import EVENTS, JSON, Person

CHECKS_OF_A_TURN = 6  # one when its request begins, three at its end; its history and its agents

violates = pytest.mark.violates


@pytest.fixture
def alerts(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Kind and subject of all that are raised."""
    raised: list[tuple[str, str]] = []
    add = parts.telemetry.pending_alerts.add

    def noted(alert: Any) -> None:
        raised.append((alert.kind, alert.subject))
        add(alert)

    monkeypatch.setattr(parts.telemetry.pending_alerts, "add", noted)
    return raised


Caught = Callable[..., None]


@pytest.fixture
def caught(parts: Parts, alerts: list[tuple[str, str]], caplog: pytest.LogCaptureFixture) -> Caught:
    def look(kind: str, request_id: str | None = None, tenant_id: str | None = None) -> None:
        told = "instance-reused" if kind == "instance-reused" else "cross-request-leak"
        wait_for(lambda: {(told, kind), ("isolation-score", "")} <= set(alerts))  # the heartbeat may be first
        assert parts.telemetry.counts() == {kind: 1}
        assert counted(parts, "isolation_violations_total") == {f"isolation_violations_total {kind}": 1}
        assert [alert for alert in alerts if alert[0] != "isolation-score"] == [(told, kind)]
        with parts.binder.bound(RequestScope(request_id="reader")):
            score = parts.isolation.now()
            assert score is not None
            assert 0 < score < 1
        run_job(parts, "store violations")
        run_job(parts, "store counts")
        wait_for(lambda: len(audited(parts, "isolation-violated")) == 1)  # the heartbeat may have taken it
        ((_, subject, tenant, found_in, _),) = audited(parts, "isolation-violated")
        assert subject == kind
        told = [
            vars(record) for record in caplog.records if f"isolation violation ({kind}): " in record.message
        ]
        assert found_in in [line["request_id"] for line in told]
        assert found_in == (request_id or found_in) != "-"
        assert tenant_id in (None, tenant)
        # The heartbeat may be storing the counts that this test has not taken.
        wait_for(lambda: 0 < score_now(parts) < 1)

    return look


def score_now(parts: Parts) -> float:
    with parts.binder.bound(RequestScope(request_id="reader")):
        return parts.isolation.now() or 0


def tenant_of(parts: Parts, someone: Person) -> str:
    with parts.binder.bound(RequestScope(request_id="reader")):
        return next(user.tenant_id for user in parts.accounts.all() if user.name == someone.name)


@violates
def test_a_binding_that_is_left_over(app: Flask, parts: Parts, ann: Person, caught: Caught) -> None:
    left = Scope(request_id="of-bob", tenant_id="elsewhere", user_id="bob", session_id="s")
    parts.binder.bound(left).__enter__()
    assert ann.get("/chat").status_code == 200
    caught("left-bound", "of-bob", "elsewhere")


@violates
def test_a_view_that_leaves_something_bound_is_found_when_its_request_ends(
    app: Flask, parts: Parts, ann: Person, caught: Caught
) -> None:
    def bind() -> str:
        parts.binder._set(replace(user_scope(), request_id="left"))
        return "done"

    app.view_functions["account.show"] = bind
    ann.get("/account")
    assert parts.binder.bound_now() is None
    caught("left-bound")


@violates
def test_a_stream_that_leaves_something_bound_is_found_when_it_ends(
    parts: Parts, ann: Person, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = EventStream.close

    def close_and_bind(stream: EventStream) -> None:
        close(stream)
        parts.binder.bound(replace(stream._subscription.feed.scope, request_id="left")).__enter__()

    monkeypatch.setattr(EventStream, "close", close_and_bind)
    answer = ann.send(ann.new_chat(), "hello", EVENTS)
    assert "turn_completed" in answer.text
    answer.close()
    assert parts.binder.bound_now() is None
    caught("left-bound", "left", tenant_of(parts, ann))


@violates
def test_agents_of_one_turn_that_are_given_to_another(
    parts: Parts, ann: Person, bob: Person, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, kept = Team.build, list[Crew]()

    def build_once(team: Team, scope: Scope, report: Any = None) -> Crew:
        kept.append(build(team, scope, report))
        return kept[0]

    monkeypatch.setattr(Team, "build", build_once)
    ann.ask(ann.new_chat(), "a secret")
    assert "secret" not in bob.ask(bob.new_chat(), "hello")["reply"]
    caught("instance-reused", tenant_id=tenant_of(parts, bob))
    kept.clear()


@violates
def test_history_rows_of_somebody_else(
    parts: Parts, ann: Person, bob: Person, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, others = ann.new_chat(), bob.new_chat()
    bob.ask(others, "a secret")
    ann.ask(mine, "hello")
    ids = (Message.tenant_id, Message.user_id, Message.session_id)
    too_wide: Any = select(Message.seq, Message.role, Message.content, *ids).where(
        or_(in_session(OWNER, Message), Message.seq > 0)
    )
    broken = turn_statements._in_one_value(too_wide)
    monkeypatch.setattr(turn_statements, "HISTORY_OF_NEWEST", broken)
    answer = ann.send(mine, "go on")
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    caught("foreign-history", tenant_id=tenant_of(parts, ann))


@violates
def test_the_result_of_somebody_elses_tool(
    parts: Parts, ann: Person, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Scope(request_id="of-bob", tenant_id="elsewhere", user_id="bob", session_id="s")
    result = ThreadedDriver._result

    def mixed_up(driver: ThreadedDriver, *args: Any) -> Any:
        return replace(result(driver, *args), content="a secret", scope=other)

    chat = ann.new_chat()
    ann.ask(chat, "/handover memory")
    monkeypatch.setattr(ThreadedDriver, "_result", mixed_up)
    assert "secret" not in str(ann.stream(chat, "/call list_notes {}"))
    caught("foreign-tool-result", tenant_id=tenant_of(parts, ann))


@violates
def test_events_of_somebody_elses_turn(
    parts: Parts, ann: Person, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    uma = someone(parts, "uma")
    other = Scope(request_id="of-bob", tenant_id="elsewhere", user_id="bob", session_id="s")
    with parts.binder.bound(uma):
        turn = begin(parts.turns.kit, uma, "hello")
        monkeypatch.setattr(LocalTurns, "feed", lambda local, turn_id: Feed(other, turn_id))
        with pytest.raises(ForeignEvents):
            parts.turns.follow(uma, turn.id)
        turn.finish()
    caught("foreign-event", uma.request_id, uma.tenant_id)


@violates
def test_a_connection_that_is_left_open(app: Flask, parts: Parts, ann: Person, caught: Caught) -> None:
    kept: list[Any] = []

    def keep() -> str:
        kept.append(parts.db.engine.connect())
        return "done"

    app.view_functions["account.show"] = keep
    ann.get("/account")
    assert parts.db.connections_in_use() == 0
    caught("connection-left", tenant_id=tenant_of(parts, ann))


@violates
def test_a_subscription_that_is_left_open(app: Flask, parts: Parts, ann: Person, caught: Caught) -> None:
    chat, kept = ann.new_chat(), list[Any]()
    turn_id = ann.ask(chat, "hello")["turn_id"]

    def follow(session_id: str) -> str:
        kept.append(parts.turns.follow(chat_scope(), turn_id))
        return "done"

    app.view_functions["chat.show"] = follow
    ann.get(f"/chat/{chat}")
    assert len(parts.turns.subscriptions) == 0
    caught("subscription-left", tenant_id=tenant_of(parts, ann))


@violates
def test_agents_that_outlive_their_turn(
    parts: Parts, ann: Person, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, kept = Team.build, list[Crew]()

    def build_and_keep(team: Team, scope: Scope, report: Any = None) -> Crew:
        kept.append(build(team, scope, report))
        return kept[-1]

    monkeypatch.setattr(Team, "build", build_and_keep)
    ann.ask(ann.new_chat(), "hello")
    live = parts.turns.kit.live_agents
    later = live._clock() + KEPT_SECONDS + 1
    monkeypatch.setattr(live, "_clock", lambda: later)
    run_job(parts, "find leftovers")
    caught("agent-left", tenant_id=tenant_of(parts, ann))
    kept.clear()
    gc.collect()


def test_a_clean_run_stays_at_exactly_1_and_every_turn_is_checked(parts: Parts, ann: Person) -> None:
    chat = ann.new_chat()
    before = counted(parts, "isolation_checks_total")["isolation_checks_total"]
    for n in range(10):
        answer = ann.send(chat, "hello", EVENTS if n % 2 else JSON)
        assert "completed" in answer.text
        answer.close()
    checks = counted(parts, "isolation_checks_total")["isolation_checks_total"] - before
    assert checks >= 10 * CHECKS_OF_A_TURN
    with parts.binder.bound(RequestScope(request_id="reader")):
        assert parts.isolation.now() == 1


def test_without_a_checked_request_the_score_is_unknown(parts: Parts) -> None:
    with parts.binder.bound(RequestScope(request_id="reader")):
        assert parts.isolation.now() is None


@violates
@pytest.mark.parametrize("stored", [False, True])
def test_an_admin_sees_the_score_of_the_own_tenant(
    parts: Parts, ann: Person, bob: Person, *, stored: bool
) -> None:
    ours, theirs = tenant_of(parts, ann), tenant_of(parts, bob)
    assert [bob.get("/chat").status_code for _ in range(3)] == [200] * 3
    parts.telemetry.violation("foreign-event", "planted", "r", tenant_id=theirs)
    parts.telemetry.violation("foreign-history", "planted", "r", tenant_id=theirs)
    if stored:
        run_job(parts, "store counts")
    with parts.binder.bound(RequestScope(request_id="reader")):
        assert parts.isolation.now(ours) == 1
        assert parts.isolation.now(theirs) == 0.75  # of four requests one: two violations of one are one
        assert parts.isolation.now("nobody's") is None


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    gc.collect()
