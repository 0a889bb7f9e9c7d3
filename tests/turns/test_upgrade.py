"""An upgrade in the middle of a turn: a database of the version before, written by it and left by `kill -9`.

Its reservations are lists, its events untyped; one turn had said half of its answer.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.guardrails.admission import TurnCells
from agentapp.isolation import Scope
from agentapp.storage import migrate
from agentapp.web.parts import Parts
from tests.support.server_users import wait_for
from tests.support.stored_bytes import counted, kept
from tests.support.turns import hurry
from tests.support.users import Person, sign_in

LEFT = Path(__file__).parent / "old_databases" / "turn_in_flight.sql"
LEFT_AT = 1_794_936_407.0  # a moment after it was killed
IN_FLIGHT, ENDED = "9TPEfr4o2Sylsp4iKGaY2g", "X6E6NLE1G4qmzB_ZfsIEtw"
TURN = "ZKjECTxWe7u-1geVb_e-ZQ"


@pytest.fixture
def old(tmp_path: Path, settings: Settings, make_app: Any) -> Flask:
    """The new version on the old database."""
    file = tmp_path / "old.sqlite3"
    with sqlite3.connect(file) as connection:
        connection.executescript(LEFT.read_text())
    connection.close()
    url = f"sqlite:///{file}"
    migrate.upgrade(url)
    app: Flask = make_app(wanted=replace(settings, database_url=url))
    parts: Parts = app.extensions["agentapp"]
    parts.turns.kit.guardrails.clock = lambda: LEFT_AT
    return app


@pytest.fixture
def parts(old: Flask) -> Parts:
    found: Parts = old.extensions["agentapp"]
    return found


@pytest.fixture
def ann(old: Flask) -> Person:
    return sign_in(old, "ann")


def held(parts: Parts, scope: Scope) -> list[int]:
    guardrails = parts.turns.kit.guardrails
    with parts.binder.bound(scope):
        cells = TurnCells(*guardrails.registry.look(guardrails.keys(scope)))
    return [
        cells.session.budget.holds.amount(LEFT_AT),
        cells.user.bulkhead.holds.count(LEFT_AT),
        cells.tenant.bulkhead.holds.count(LEFT_AT),
        cells.provider.bulkhead.holds.count(LEFT_AT),
    ]


def scope_of(parts: Parts, session_id: str) -> Scope:
    ((tenant_id, user_id),) = _rows(parts, "SELECT tenant_id, id FROM users")
    return Scope(request_id="r", tenant_id=tenant_id, user_id=user_id, session_id=session_id)


def _rows(parts: Parts, query: str) -> list[Any]:
    with sqlite3.connect(str(parts.db.engine.url.database)) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


def test_the_old_database_is_one(parts: Parts) -> None:
    """Or the claims below would be about nothing."""
    ((admission,),) = _rows(parts, "SELECT admission FROM turns WHERE status = 'running'")
    assert isinstance(json.loads(admission), list)
    assert held(parts, scope_of(parts, IN_FLIGHT)) == [50_000, 1, 1, 0]


def test_what_the_old_version_kept_is_counted(parts: Parts) -> None:
    assert counted(parts.db.engine) == kept(parts.db.engine) != {}


def test_a_turn_in_flight_is_interrupted_and_what_it_reserved_is_given_back(
    parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, parts)
    parts.start()
    scope = scope_of(parts, IN_FLIGHT)
    wait_for(lambda: not _rows(parts, "SELECT * FROM live_turns"))
    assert held(parts, scope) == [0, 0, 0, 0]
    whole = ann.get(f"/chat/{IN_FLIGHT}/export.json").json
    assert [turn["status"] for turn in whole["turns"]] == ["interrupted"]
    assert [m["content"] for m in whole["messages"]] == ["Tell me all of it", "Half of an answer"]


def test_the_next_message_does_the_same_before_the_heartbeat_comes_to_it(parts: Parts, ann: Person) -> None:
    assert "go on" in ann.ask(IN_FLIGHT, "go on")["reply"]
    assert held(parts, scope_of(parts, IN_FLIGHT)) == [0, 0, 0, 0]
    whole = ann.get(f"/chat/{IN_FLIGHT}/export.json").json
    assert [turn["status"] for turn in whole["turns"]] == ["interrupted", "completed"]


def test_the_same_message_with_its_key_is_still_that_turn(ann: Person) -> None:
    events = ann.get(f"/chat/{IN_FLIGHT}/turns/{TURN}/events?after=0").text
    assert '"text": "Half of "' in events
    answer = ann.send(IN_FLIGHT, "Tell me all of it", idempotency_key="key-in-flight")
    assert (answer.json["turn_id"], answer.json["status"]) == (TURN, "interrupted")


def test_deleting_the_chat_gives_back_too(parts: Parts, ann: Person) -> None:
    scope = scope_of(parts, IN_FLIGHT)
    assert ann.post(f"/chat/{IN_FLIGHT}/delete").status_code == 303
    assert held(parts, scope) == [0, 0, 0, 0]


def test_ended_turns_are_shown_with_their_steps_and_told_again(ann: Person) -> None:
    page = ann.get(f"/chat/{ENDED}").text
    for words in ("calculate", "42", "tea is at five"):
        assert words in page
    (first, *_) = ann.get(f"/chat/{ENDED}/export.json").json["turns"]
    told = ann.get(f"/chat/{ENDED}/turns/{first['id']}/events").text
    assert "event: handed_over" in told
    assert "event: turn_completed" in told
