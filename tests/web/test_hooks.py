"""The pair of hooks: what it opens is closed, whatever fails, and nothing of one request reaches the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest
from flask import Flask, g
from flask_login import current_user

from agentapp.errors import NotBound
from agentapp.isolation import RequestScope, Scope, UserScope
from agentapp.web.parts import Parts
from tests.support.users import EVENTS, PAGE, Person, person


@pytest.fixture
def witness(app: Flask, parts: Parts) -> Callable[[], dict[str, Any]]:
    """What a request of nobody sees of anybody, in every place there is on its thread."""

    @app.get("/witness")
    def look() -> dict[str, Any]:
        scope = parts.binder.current()
        return {
            "scope": type(scope).__name__,
            "user": g.get("user") and g.user.name,
            "login": current_user.is_authenticated,
            "sessions": [thread for _, thread in parts.db._readers.registry.registry].count(get_ident()),
        }

    return lambda: app.test_client().get("/witness").json  # type: ignore[return-value]


NOBODY = {"scope": "RequestScope", "user": None, "login": False, "sessions": 0}


def left_open(parts: Parts) -> int:
    """How many database sessions stay open. The heartbeat's own, which may just be at work, does not."""
    ends = time.monotonic() + 5
    while (found := parts.db.open_readers()) and time.monotonic() < ends:
        time.sleep(0.01)
    return found


def test_a_request_has_the_scope_its_route_and_login_give(app: Flask, parts: Parts) -> None:
    seen: list[RequestScope] = []
    app.before_request(lambda: seen.append(parts.binder.current()))
    ann = person(app, "ann")
    seen.clear()
    app.test_client().get("/login", headers=PAGE)
    ann.get("/chat")
    chat = ann.new_chat()
    ann.get(f"/chat/{chat}")
    assert [type(scope) for scope in seen] == [RequestScope, UserScope, UserScope, Scope]
    assert isinstance(seen[-1], Scope)
    assert seen[-1].session_id == chat
    assert len({scope.request_id for scope in seen}) == 4


def test_after_a_request_nothing_is_bound_and_no_session_is_open(parts: Parts, ann: Person) -> None:
    for path in ("/chat", "/chat/absent-absent-absent", "/nowhere", "/livez"):
        ann.get(path)
        with pytest.raises(NotBound):
            parts.binder.current()
        assert left_open(parts) == 0


def test_after_a_streaming_turn_a_stranger_on_the_same_thread_sees_nobody(
    app: Flask, parts: Parts, witness: Any
) -> None:
    ann = person(app, "ann")
    answer = ann.send(ann.new_chat(), "my secret", EVENTS)
    pulls = answer.iter_encoded() if hasattr(answer, "iter_encoded") else answer.response
    for chunk in pulls:
        assert witness() == NOBODY, f"seen while the stream of somebody else was at {chunk!r}"
    answer.close()
    assert witness() == NOBODY
    assert parts.telemetry.counts() == {}


def test_the_tools_threads_work_for_the_same_scope(
    app: Flask, parts: Parts, ann: Person, monkeypatch: Any
) -> None:
    seen: list[tuple[RequestScope, str]] = []
    real = parts.turns.kit.notes.all

    def look(scope: Scope) -> Any:
        seen.append((parts.binder.current(), threading.current_thread().name))
        return real(scope)

    monkeypatch.setattr(parts.turns.kit.notes, "all", look)
    chat = ann.new_chat()
    ann.ask(chat, "/handover memory")
    ann.ask(chat, "/call list_notes {}")
    assert len(seen) == 1
    assert isinstance(seen[0][0], Scope)
    assert seen[0][0].session_id == chat
    assert seen[0][1] == "agentapp-tool-list_notes"
    assert left_open(parts) == 0


@pytest.mark.violates
def test_somebody_elses_teardown_that_raises_changes_nothing_for_the_next(
    app: Flask, parts: Parts, witness: Any
) -> None:
    """Flask stops at the first teardown that raises, so ours is not even called. The sweep must catch it."""
    armed: list[bool] = []

    def raises(error: BaseException | None) -> None:
        if armed and g.get("user") is not None:
            raise OSError("a teardown of somebody else")

    app.teardown_request(raises)
    ann = person(app, "ann")
    chat = ann.new_chat()
    armed.append(True)
    with pytest.raises(OSError):
        ann.get(f"/chat/{chat}")
    assert parts.binder.current(), "our teardown did run: this test shows nothing any more"
    assert witness() == NOBODY
    assert parts.telemetry.counts() == {"left-bound": 1}
    with pytest.raises(NotBound):
        parts.binder.current()


def test_our_own_failing_cleanup_still_unbinds_and_spoils_no_answer(
    app: Flask, parts: Parts, witness: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ann = person(app, "ann")

    def fails() -> None:
        raise OSError("a clean-up of ours")

    parts.binder.at_release(fails)
    assert ann.get("/chat").status_code == 200
    with pytest.raises(NotBound):
        parts.binder.current()
    assert left_open(parts) == 0
    assert "a clean-up failed" in caplog.text
    assert witness() == NOBODY
    parts.binder._cleanups = parts.binder._cleanups[:1]


def test_a_view_that_raises_leaves_nothing_bound(app: Flask, parts: Parts, witness: Any) -> None:
    @app.get("/broken")
    def broken() -> str:
        with parts.db.reading() as db:
            db.connection()
        raise ZeroDivisionError("a secret in a traceback")

    ann = person(app, "ann")
    answer = ann.get("/broken")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert witness() == NOBODY
