"""The ends of turns: counted once, with what a failure did to others, and breakers that open and close."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from agentapp.agents.loop import TurnLoop
from agentapp.config import Settings
from agentapp.errors import ForeignScope, TurnFailed, TurnInterrupted, TurnStopped
from agentapp.guardrails.changes import Settled
from agentapp.isolation import Scope
from agentapp.storage.turns import SqlChatTransaction
from agentapp.turns.ends import Ending, TurnEnds
from agentapp.turns.uncounted import SLOTS, TurnEnd, UncountedTurns
from agentapp.web.parts import Parts
from tests.support.metrics import audited, counted, run_job
from tests.support.times import utc_now
from tests.support.turns import begin, someone
from tests.support.users import Person, person

ENDS = ("turns_total", "failures_total", "failures_contained_total")
TRIPS, BREAKERS = "breaker_trips_total", ("breaker-opened", "breaker-closed")
UNCOUNTED = "count the turns that a killed worker has stored and not counted"


def ends(parts: Parts) -> Mapping[str, float]:
    return counted(parts, *ENDS)


def test_a_chat_that_is_paused_is_one_trip_however_often_it_refuses(parts: Parts, ann: Person) -> None:
    chat = ann.new_chat()
    assert [ann.send(chat, "/fail").status_code for _ in range(5)] == [502, 502, 502, 503, 503]
    assert ends(parts) == {"turns_total failed": 3, "failures_total": 3, "failures_contained_total": 3}
    assert counted(parts, TRIPS, "refusals_total") == {
        f"{TRIPS} session": 1,
        "refusals_total breaker-open session": 2,
    }
    ((action, subject, tenant, request_id, detail),) = audited(parts, *BREAKERS)
    assert (action, subject, detail["failures"]) == ("breaker-opened", f"session:{chat}", 3)
    assert 20 < detail["cooldown"] <= 30
    assert tenant
    assert request_id != "-"


def test_a_breaker_that_closes_is_in_the_audit_log_and_one_that_opens_anew_is_no_trip(
    parts: Parts, ann: Person
) -> None:
    chat = ann.new_chat()
    guardrails = parts.turns.kit.guardrails
    for said, later in (("/fail", 0), ("/fail", 0), ("/fail", 0), ("/fail", 31), ("hello", 200)):
        now = guardrails.clock() + later
        guardrails.clock = lambda now=now: now  # type: ignore[misc]
        ann.send(chat, said)
    assert [row[0] for row in audited(parts, *BREAKERS)] == ["breaker-opened", "breaker-closed"]
    assert counted(parts, TRIPS) == {f"{TRIPS} session": 1}
    assert ends(parts)["failures_contained_total"] == 4


def test_a_failure_that_stops_its_users_other_chats_is_not_contained(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    app = make_app(wanted=replace(settings, breaker_user_failures=2))
    ann, parts = person(app, "ann"), app.extensions["agentapp"]
    for _ in range(2):
        ann.send(ann.new_chat(), "/fail")
    assert ann.send(ann.new_chat(), "hello").status_code == 503
    assert ends(parts) == {"turns_total failed": 2, "failures_total": 2, "failures_contained_total": 1}
    assert counted(parts, TRIPS) == {f"{TRIPS} user": 1}


def test_a_failure_that_stops_everybody_or_keeps_them_out_is_not_contained_and_alerts_once(
    make_app: Callable[..., Flask], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(wanted=replace(settings, provider_breaker_users=2, breaker_failures=10))
    parts: Parts = app.extensions["agentapp"]
    alerts: list[tuple[str, str]] = []
    monkeypatch.setattr(
        parts.telemetry.pending_alerts, "add", lambda alert: alerts.append((alert.kind, alert.subject))
    )
    ann, bob = person(app, "ann"), person(app, "bob", tenant="elsewhere")
    chats = [(ann, ann.new_chat()), (bob, bob.new_chat())]
    for who, chat in chats:
        assert who.send(chat, "/fail").status_code == 502
    assert [who.send(chat, "hello").status_code for who, chat in chats] == [503, 503]
    assert ends(parts) == {"turns_total failed": 2, "failures_total": 2, "failures_contained_total": 1}
    assert counted(parts, TRIPS) == {f"{TRIPS} provider": 1}
    assert alerts == [("provider-breaker-open", "provider:demo")]
    ((_, subject, tenant, _, _),) = audited(parts, "breaker-opened")
    assert (subject, tenant) == ("provider:demo", None)
    early = person(app, "eve", tenant="third")  # of which nobody failed: may try before the time
    assert early.send(early.new_chat(), "/fail").status_code == 502
    assert ends(parts)["failures_contained_total"] == 1
    assert counted(parts, TRIPS) == {f"{TRIPS} provider": 1}
    assert len(alerts) == 1
    last = person(app, "flo", tenant="fourth")
    assert last.ask(last.new_chat(), "hello")["status"] == "completed"
    assert [row[:2] for row in audited(parts, "breaker-closed")] == [("breaker-closed", "provider:demo")]


@pytest.mark.violates
def test_a_turn_that_fails_because_of_somebody_else_is_not_contained(
    parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mixed_up(loop: TurnLoop) -> Any:
        error = ForeignScope("triage", loop.scope, "another")
        loop.crew.report(error)
        raise error

    monkeypatch.setattr(TurnLoop, "run", mixed_up)
    assert ann.send(ann.new_chat(), "hello").status_code == 500
    assert ends(parts) == {"turns_total failed": 1, "failures_total": 1}


@pytest.mark.parametrize(
    ("status", "reason"), [("stopped", TurnStopped()), ("interrupted", TurnInterrupted())]
)
def test_stopped_and_interrupted_turns_are_no_failures(parts: Parts, status: str, reason: TurnFailed) -> None:
    uma = someone(parts, "uma")
    with parts.binder.bound(uma):
        turn = begin(parts.turns.kit, uma, "hello")
        turn.halt(reason)
        turn.finish()
    assert ends(parts) == {f"turns_total {status}": 1}


def test_what_could_not_be_stored_was_not_counted_and_opened_nothing(
    parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(chat: SqlChatTransaction, turn_id: str) -> None:
        raise ValueError("the end could not be stored")

    chat = ann.new_chat()
    for _ in range(2):
        ann.send(chat, "/fail")
    monkeypatch.setattr(SqlChatTransaction, "remove_live_turn", fails)
    ann.send(chat, "/fail")
    assert ends(parts)["turns_total failed"] == 2
    assert counted(parts, TRIPS) == {}
    assert audited(parts, *BREAKERS) == []


def test_a_chat_that_is_deleted_while_it_answers_counts_its_turn_once(parts: Parts) -> None:
    uma = someone(parts, "uma")
    with parts.binder.bound(uma):
        turn = begin(parts.turns.kit, uma, "hello")
        parts.turns.delete_chat(uma)
        turn.finish()
    assert ends(parts) == {"turns_total stopped": 1}


def test_a_worker_killed_between_storing_and_counting_leaves_the_turn_to_the_next_one(
    database_url: str,
    make_app: Callable[..., Flask],
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, third = (
        make_app(wanted=replace(settings, database_url=database_url)).extensions["agentapp"] for _ in range(3)
    )
    first.turns.kit.uncounted.join(tmp_path, 3)
    uma = someone(first, "uma")
    with first.binder.bound(uma), monkeypatch.context() as killed:
        killed.setattr(Ending, "over", lambda ending, is_stored: None)
        begin(first.turns.kit, uma, "hello").finish()
    assert ends(first) == {}
    for parts, expected in ((second, {"turns_total completed": 1}), (third, {})):
        parts.turns.kit.uncounted.join(tmp_path, 3)
        run_job(parts, UNCOUNTED)
        run_job(parts, UNCOUNTED)
        assert ends(parts) == expected


def test_a_turn_whose_end_was_not_committed_is_left_to_who_interrupts_it(
    make_app: Callable[..., Flask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (make_app().extensions["agentapp"] for _ in range(2))
    first.turns.kit.uncounted.join(tmp_path, 0)
    uma = someone(first, "uma")

    def killed(chat: SqlChatTransaction, turn_id: str) -> None:
        raise ValueError("killed")

    with first.binder.bound(uma), monkeypatch.context() as patch:
        patch.setattr(Ending, "over", lambda ending, is_stored: None)
        patch.setattr(SqlChatTransaction, "remove_live_turn", killed)
        begin(first.turns.kit, uma, "hello").finish()
    second.turns.kit.uncounted.join(tmp_path, 0)
    assert [end.status for end in second.turns.kit.uncounted.left().values()] == ["completed"]
    run_job(second, UNCOUNTED)
    assert ends(second) == {}
    assert second.turns.kit.uncounted.left() == {}


def test_notes_of_ends_are_kept_by_place_survive_and_are_given_back(tmp_path: Path) -> None:
    scope = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
    turns = UncountedTurns()
    assert turns.note(end_of(scope, 0)) is None, "without a file nobody could read it"
    turns.join(tmp_path, 1)
    slots = [turns.note(end_of(scope, n)) for n in range(SLOTS + 1)]
    assert slots[-1] is None
    for slot in slots[2:]:
        turns.clear(slot)
    elsewhere, after = UncountedTurns(), UncountedTurns()
    elsewhere.join(tmp_path, 2)
    assert elsewhere.left() == {}
    after.join(tmp_path, 1)
    assert sorted(end.turn_id for end in after.left().values()) == ["turn-0", "turn-1"]
    for slot in after.left():
        after.clear(slot)
    assert {after.note(end_of(scope, n)) for n in range(SLOTS)} == set(range(SLOTS))


def end_of(scope: Scope, number: int) -> TurnEnd:
    return TurnEnd(scope, f"turn-{number}", "completed", True, utc_now())


def test_an_end_that_is_told_twice_is_counted_once(parts: Parts) -> None:
    uma = someone(parts, "uma")
    made = TurnEnds(parts.turns.kit.guardrails, parts.telemetry, UncountedTurns())
    ending = Ending(made, end_of(uma, 0), Settled(), None)
    for told in (False, True, True):
        ending.over(told)
    assert ends(parts) == {"turns_total completed": 1}
