"""The turns that run now, and how an admin stops one, whichever worker plays it."""

from __future__ import annotations

import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import select, update

from agentapp.storage.models import LiveTurn
from agentapp.storage.operator_models import AuditRow
from agentapp.turns.feed import Subscription
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.support.scripted import Scripted
from tests.support.times import utc_now
from tests.support.turns import begin, hurry, someone
from tests.support.users import JSON, Person, person
from tests.turns.charging import says
from tests.turns.test_surviving import staged

SAID = "One half of a secret"


@pytest.fixture
def answering(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], tuple[str, Subscription]]]:
    """Makes a user with a turn whose model says a half and then nothing."""
    hurry(monkeypatch, parts)
    silence, followers = threading.Event(), list[Subscription]()

    def begin(name: str) -> tuple[str, Subscription]:
        followers.append(
            staged(parts, Scripted(says(SAID, silence))).send(
                someone(parts, name), NewMessage("a private question")
            )
        )
        return followers[-1].feed.turn_id, followers[-1]

    yield begin
    silence.set()
    for each in followers:
        each.finish(20)
        each.close()


def stopped_by(parts: Parts) -> list[tuple[str | None, str, str | None]]:
    with parts.db.writing() as db:
        rows = db.scalars(select(AuditRow).where(AuditRow.action == "turn-stopped"))
        return [(row.tenant_id, row.subject, row.detail["user"]) for row in rows]


def test_running_turns_are_listed_with_whose_they_are_and_never_what_is_said(
    parts: Parts, admin: Person, answering: Callable[[str], tuple[str, Subscription]]
) -> None:
    answering("uma")
    page = admin.get("/admin/turns").text
    front = parts.turns.kit.team.front.name
    assert ">uma</a>" in page
    assert f"<td>{front}</td>" in page
    assert "private" not in page
    assert SAID not in page


def test_an_admin_stops_a_turn_that_another_worker_plays(
    make_app: Callable[..., Flask], parts: Parts, answering: Callable[[str], tuple[str, Subscription]]
) -> None:
    """The app that the admin asks has never heard of the turn."""
    turn_id, follower = answering("uma")
    admin = person(make_app(), "ada", role="admin")
    assert admin.post(f"/admin/turns/{turn_id}/stop").location == "/admin/turns?done=stop"
    end = follower.finish(20)
    assert end is not None
    assert (end.result.status, end.result.error_code) == ("stopped", None)
    scope = follower.feed.scope
    assert stopped_by(parts) == [(scope.tenant_id, f"turn:{turn_id}", scope.user_id)]


def test_a_turn_that_has_ended_is_not_found_and_one_that_is_stopping_is_asked_once(
    parts: Parts,
    admin: Person,
    answering: Callable[[str], tuple[str, Subscription]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn_id, follower = answering("uma")
    monkeypatch.setattr(parts.turns.local.__class__, "halt_as_stored", lambda *ignored: None)
    for _ in range(2):
        assert admin.post(f"/admin/turns/{turn_id}/stop").status_code == 303
    assert ">stopping</span>" in admin.get("/admin/turns").text
    assert f"/admin/turns/{turn_id}/stop" not in admin.get("/admin/turns").text
    assert len(stopped_by(parts)) == 1
    monkeypatch.undo()
    assert follower.finish(20) is not None
    answer = admin.post(f"/admin/turns/{turn_id}/stop", JSON)
    assert (answer.status_code, answer.json["code"]) == (404, "not-found")


def test_the_oldest_come_first_and_a_page_at_a_time(
    parts: Parts, admin: Person, answering: Callable[[str], tuple[str, Subscription]]
) -> None:
    turns = [answering(name)[0] for name in ("one", "two", "three")]
    listed, found, after = parts.admin.running_turns, list[str](), None
    with parts.binder.bound(someone(parts, "asking")):
        while page := listed.listed(None, after, 1):
            found.append(page[0].id)
            after = page[0].started_at, page[0].id
    assert found == turns


@pytest.mark.parametrize("key", ['["x", "y"]', '["2026-11-19", "y"]', '["2026-11-19T10:00:00", "y"]'])
def test_a_page_that_begins_at_no_time_is_refused(admin: Person, key: str) -> None:
    assert admin.get(f"/admin/turns?after={urlsafe_b64encode(key.encode()).decode()}").status_code == 400


def test_a_lease_that_is_over_is_shown(
    parts: Parts, admin: Person, answering: Callable[[str], tuple[str, Subscription]]
) -> None:
    answering("uma")
    assert ">over</span>" not in admin.get("/admin/turns").text
    parts.turns.heartbeat.close()
    with parts.db.writing() as db:
        db.execute(update(LiveTurn).values(lease_until=utc_now() - timedelta(seconds=1)))
    assert ">over</span>" in admin.get("/admin/turns").text
    parts.turns.heartbeat.wake()


def test_the_list_is_the_same_on_both_databases(any_app: Flask) -> None:
    found: Parts = any_app.extensions["agentapp"]
    scope = someone(found, "uma")
    with found.binder.bound(scope):
        begun = staged(found, Scripted("never asked")).kit
        turn = begin(begun, scope, "Hello")
        (listed,) = found.admin.running_turns.listed(scope.tenant_id, None, 9)
        assert (listed.id, listed.user, listed.host) == (turn.id, "uma", None)
        assert not found.admin.running_turns.listed("another tenant", None, 9)
        key = listed.started_at, listed.id
        assert not found.admin.running_turns.listed(None, key, 9)
        found.admin.running_turns.stop(scope, scope.tenant_id, turn.id)
        assert found.admin.running_turns.listed(None, None, 9)[0].stop_asked
        turn.finish()
