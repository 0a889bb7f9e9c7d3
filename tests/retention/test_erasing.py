"""A user is erased: nothing of it is left but audit rows with an id, and nobody else has lost anything."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from flask import Flask
from sqlalchemy import select, text

from agentapp.config import Settings
from agentapp.errors import Forbidden, NotFound, StorageUnavailable
from agentapp.guardrails.cell import Key
from agentapp.guardrails.outage import Person as Failed
from agentapp.isolation import RequestScope
from agentapp.storage.models import LiveTurn
from agentapp.storage.operator_models import AuditRow, UsageDay
from agentapp.storage.user_erasure import UserErasureStore
from agentapp.storage.vacuum import Vacuum, Vacuumed
from agentapp.web.parts import Parts
from tests.support.databases import only_sqlite
from tests.support.erased_users import MARK, files_with, leave_traces, scope_of, tables_with
from tests.support.users import JSON, Person, person, sign_in, without_limits

BY = RequestScope(request_id="test")


@pytest.fixture
def wanted(settings: Settings, database_url: str) -> Settings:
    return replace(without_limits(settings), database_url=database_url, rate_login=(10, 900.0))


@pytest.fixture
def app(make_app: Callable[..., Flask], wanted: Settings) -> Flask:
    return make_app(wanted=wanted)


@pytest.fixture
def carl(app: Flask) -> Person:
    return person(app, f"{MARK}carl")


def erase(parts: Parts, name: str) -> tuple[str, dict[str, int]]:
    with parts.binder.bound(BY):
        found = UserErasureStore(parts.db).named(name)
        return found.id, dict(parts.eraser.erase(found, BY))


def test_only_audit_rows_know_an_erased_user_and_only_by_an_id(
    app: Flask, parts: Parts, carl: Person
) -> None:
    ann = person(app, "ann")
    ann.ask(ann.new_chat(), "Hello")
    leave_traces(app, carl)
    fail_for(parts, carl)
    parts.turns.heartbeat.threads[1].beat()
    mine = scope_of(parts, carl)
    chats = [chat.id for chat in parts.chats.page(mine)[0]]
    before = tables_with(parts.db.engine, [mine.user_id, MARK, *chats])
    assert before >= {"users", "logins", "sessions", "turns", "messages", "notes", "search_entries", "alerts"}
    assert before >= {"guardrail_cells", "usage_days"}
    user_id, counts = erase(parts, carl.name)
    assert tables_with(parts.db.engine, [user_id, *chats]) == {"audit_log"}
    with parts.binder.bound(BY):
        Vacuum(parts.db).run()
    assert tables_with(parts.db.engine, [MARK]) == set()
    assert counts.keys() >= before - {"audit_log", "search_index", "search_index_data"}
    assert (counts["sessions"], counts["messages"], counts["notes"], counts["users"]) == (2, 8, 2, 1)
    assert ann.get("/chat").status_code == 200
    assert tables_with(parts.db.engine, [scope_of(parts, ann).user_id]) >= {"users", "sessions", "messages"}


def test_what_a_tenant_has_spent_stays(app: Flask, parts: Parts, carl: Person) -> None:
    dora = person(app, f"{MARK}dora")
    for each in (carl, dora):
        leave_traces(app, each, chats=1)
    spent = usage(parts)
    erase(parts, carl.name)
    erase(parts, dora.name)
    assert usage(parts) == spent
    with parts.db.writing() as db:
        assert set(db.scalars(select(UsageDay.user_id))) == {""}


def test_the_next_request_of_an_erased_user_is_refused_in_every_worker(
    make_app: Callable[..., Flask], wanted: Settings, app: Flask, parts: Parts, carl: Person
) -> None:
    second = make_app(wanted=wanted)
    elsewhere = sign_in(second, carl.name)
    chat = carl.new_chat()
    for who in (carl, elsewhere):
        assert who.ask(chat, "Hello")["status"] == "completed"
    erase(parts, carl.name)
    for who in (carl, elsewhere):
        assert who.browser.get("/chat", headers=JSON).status_code == 401
        assert who.send(chat, "Hello").status_code in (401, 403)
    with pytest.raises(AssertionError, match="not right"):
        sign_in(second, carl.name)
    again = person(app, carl.name)
    assert again.get("/chat").text.count('href="/chat/') == 0, "the name may be given again, to somebody new"


def test_a_running_turn_is_stopped_and_leaves_nothing(
    make_app: Callable[..., Flask], wanted: Settings, parts: Parts, carl: Person
) -> None:
    slow = make_app(wanted=replace(wanted, demo_delay=0.2))
    mine = sign_in(slow, carl.name)
    chat = mine.new_chat()
    sending = threading.Thread(target=mine.send, args=(chat, f"Tell me a long story of {MARK}"))
    sending.start()
    wait_for_running_turn(parts)
    user_id, _ = erase(parts, carl.name)
    slow_parts: Parts = slow.extensions["agentapp"]
    slow_parts.turns.local.interrupt_all()
    sending.join()
    assert tables_with(parts.db.engine, [user_id, chat]) == {"audit_log"}


def test_the_last_operator_cannot_be_erased(app: Flask, parts: Parts) -> None:
    person(app, "otto", role="operator")
    with pytest.raises(Forbidden):
        erase(parts, "otto")
    assert sign_in(app, "otto").get("/chat").status_code == 200, "and is not locked out"
    person(app, "olga", role="operator")
    erase(parts, "otto")
    with pytest.raises(Forbidden):
        erase(parts, "olga")


def test_an_erasure_that_broke_off_is_done_to_its_end_by_the_next_one(
    parts: Parts, carl: Person, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_traces(app, carl, chats=1)

    def away(*_: object) -> None:
        raise StorageUnavailable("away")

    with monkeypatch.context() as broken:
        broken.setattr(UserErasureStore, "remove", away)
        with pytest.raises(StorageUnavailable):
            erase(parts, carl.name)
    assert carl.browser.get("/chat", headers=JSON).status_code == 401
    user_id, _ = erase(parts, carl.name)
    assert tables_with(parts.db.engine, [user_id]) == {"audit_log"}
    with pytest.raises(NotFound):
        erase(parts, carl.name)


def test_it_is_audited_with_the_id_and_numbers(parts: Parts, carl: Person) -> None:
    carl.new_chat()
    user_id, counts = erase(parts, carl.name)
    with parts.db.writing() as db:
        entry = db.scalars(select(AuditRow).where(AuditRow.action == "user-erased")).one()
        assert (entry.subject, entry.detail) == (f"user:{user_id}", counts)


@only_sqlite
def test_a_canary_is_in_no_page_of_the_file_or_its_log_while_others_read(
    make_app: Callable[..., Flask], wanted: Settings, app: Flask, parts: Parts, carl: Person
) -> None:
    """With others' rows before, between and after it, so that pages are split, and with chats that were
    deleted long before.
    """
    file = Path(wanted.database_url.removeprefix("sqlite:///"))
    ann = person(app, "ann")
    hers = ann.new_chat()
    for number in range(4):
        ann.ask(hers, f"Number {number} of words " * 40)
        leave_traces(app, carl, chats=1)
        parts.turns.heartbeat.threads[1].beat()  # into the index of the search
    # As a version without secure_delete has left them, in unused pages.
    with closing(sqlite3.connect(file)) as before:
        before.execute("PRAGMA secure_delete = OFF")
        before.execute("CREATE TABLE chats_before (said TEXT)")
        before.executemany("INSERT INTO chats_before VALUES (?)", [(f"{MARK} said long ago " * 50,)] * 50)
        before.execute("DROP TABLE chats_before")
        before.commit()
    assert files_with(file, MARK)
    second: Parts = make_app(wanted=wanted).extensions["agentapp"]
    over, read = threading.Event(), threading.Event()

    def read_on() -> None:
        with second.binder.bound(BY):
            while not over.is_set():
                with second.db.reading() as db:
                    db.execute(text("SELECT count(*) FROM users")).one()
                    read.set()
                second.db.release()

    reader = threading.Thread(target=read_on)
    reader.start()
    read.wait()
    try:
        erase(parts, carl.name)
        with parts.binder.bound(BY):
            assert parts.vacuum.run() is Vacuumed.DONE
    finally:
        over.set()
        reader.join()
    assert files_with(file, MARK) == {}
    assert "Number 3 of words" in ann.get(f"/chat/{hers}").text
    assert hers in ann.get("/chat?q=words").text


@only_sqlite
def test_deleted_rows_alone_leave_copies_behind(
    wanted: Settings, app: Flask, parts: Parts, carl: Person
) -> None:
    """What the test above looks for is there to be found."""
    leave_traces(app, carl)
    parts.turns.heartbeat.threads[1].beat()
    erase(parts, carl.name)
    assert files_with(Path(wanted.database_url.removeprefix("sqlite:///")), MARK)


@only_sqlite
def test_it_says_so_if_the_file_cannot_be_made_anew(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    with parts.binder.bound(BY):
        assert parts.vacuum.run(largest=10) is Vacuumed.TOO_LARGE
        with monkeypatch.context() as full:
            full.setattr("agentapp.storage.vacuum.ROOM_NEEDED", 10**15)
            assert parts.vacuum.run() is Vacuumed.NO_ROOM
        monkeypatch.setattr("agentapp.storage.vacuum.CHECKPOINT_SECONDS", 0)
        monkeypatch.setattr("agentapp.storage.vacuum.BUSY_MILLISECONDS", 1)
        with parts.db.engine.connect() as reader:
            reader.execute(text("SELECT count(*) FROM users")).one()
            assert parts.vacuum.run() is Vacuumed.STILL_READ
        assert parts.vacuum.run() is Vacuumed.DONE


def fail_for(parts: Parts, who: Person) -> None:
    """The cells of the provider and the tenant remember that the model failed for this user."""
    scope = scope_of(parts, who)
    failed = Failed(scope.tenant_id, scope.user_id)
    with parts.binder.bound(scope):
        for key in (Key("provider", "demo"), Key("tenant", scope.tenant_id)):
            registry = parts.turns.kit.guardrails.registry
            registry.update(key, lambda cell: replace(cell, outage=cell.outage.failed(failed, 1e6)))


def usage(parts: Parts) -> dict[tuple[str, str, str], tuple[int, int]]:
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    with parts.db.writing() as db:
        for row in db.scalars(select(UsageDay)):
            key = (row.day, row.agent, row.model)
            turns, cost = sums.get(key, (0, 0))
            sums[key] = turns + row.turns, cost + row.cost_microusd
    return sums


def wait_for_running_turn(parts: Parts) -> None:
    ends = threading.Event()
    for _ in range(500):
        with parts.db.writing() as db:
            if db.scalar(select(LiveTurn.turn_id)) is not None:
                return
        ends.wait(0.01)
    raise AssertionError("no turn has begun")
