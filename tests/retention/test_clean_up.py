"""The clean-up removes what is too old and nothing else, and counts the same when it only counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from agentapp.config import Settings
from agentapp.errors import GuardrailRefused, StorageUnavailable
from agentapp.guardrails.cell import Key
from agentapp.isolation import RequestScope, new_id
from agentapp.retention.clean_up import CleanUp, Pace, Swept, Tally
from agentapp.retention.keeping import Keeping
from agentapp.retention.schedule import EVERY, LOOK_SECONDS, NAME, ScheduledCleanUp
from agentapp.storage.audit_log import ADD_ENTRY, AuditEntry
from agentapp.storage.background_jobs import BackgroundJobs
from agentapp.storage.models import ChargedTurn, ChatSession, GuardrailCell, Login, SetupLink
from agentapp.storage.operator_models import AlertRow, AuditRow, MinuteCount, WorkerRow
from agentapp.storage.retention_parts import make_clean_up
from agentapp.web.parts import Parts
from tests.support.databases import only_sqlite
from tests.support.erased_users import scope_of
from tests.support.plans import scans_noted
from tests.support.stored_bytes import counted, kept
from tests.support.times import utc_now
from tests.support.turns import begin, someone
from tests.support.users import Person, person, without_limits

NOW = utc_now()
LONG_AGO = NOW - timedelta(days=400)
BY = RequestScope(request_id="test")


@pytest.fixture
def wanted(settings: Settings, database_url: str) -> Settings:
    return replace(without_limits(settings), database_url=database_url, retain_sessions_days=30)


@pytest.fixture
def app(make_app: Callable[..., Flask], wanted: Settings) -> Flask:
    return make_app(wanted=wanted)


@pytest.fixture
def clean_up(parts: Parts) -> CleanUp:
    kind, cells = parts.turns.kit.guardrails.registry._kind, parts.breakers
    return make_clean_up(parts.db, parts.settings, kind, cells)  # type: ignore[arg-type]


def run(parts: Parts, clean_up: CleanUp, *, dry_run: bool = False) -> dict[str, int]:
    with parts.binder.bound(BY):
        tally, is_complete = clean_up.run(
            NOW, dry_run=dry_run, is_over=lambda: False, rest=lambda seconds: None
        )
    assert is_complete
    return tally.by_kind()


def age(parts: Parts, chat: str, days: float) -> None:
    with parts.db.writing() as db:
        at = {"updated_at": NOW - timedelta(days=days)}
        # Whose it is does not matter here, and every query has to name an owner.
        anybodys = ChatSession.tenant_id == ChatSession.tenant_id, ChatSession.user_id == ChatSession.user_id
        db.execute(update(ChatSession).where(ChatSession.id == chat, *anybodys).values(at))


def chats_of(parts: Parts, who: Person) -> set[str]:
    scope = scope_of(parts, who)
    with parts.binder.bound(scope):
        return {chat.id for chat in (*parts.chats.page(scope)[0], *parts.chats.pinned(scope))}


def test_chats_that_were_not_used_for_long_go_with_all_that_is_theirs(
    parts: Parts, clean_up: CleanUp, ann: Person
) -> None:
    old, recent = ann.new_chat(), ann.new_chat()
    for chat in (old, recent):
        ann.ask(chat, "Some words to be found")
    age(parts, old, 31)
    age(parts, recent, 29)
    assert run(parts, clean_up, dry_run=True) == {"chats": 1}
    assert chats_of(parts, ann) == {old, recent}
    assert run(parts, clean_up) == {"chats": 1}
    assert chats_of(parts, ann) == {recent}
    assert ann.get("/chat?q=words").text.count(f"/chat/{old}") == 0
    with parts.db.writing() as db:
        assert db.get(GuardrailCell, ("session", old)) is None
        assert db.get(GuardrailCell, ("session", recent)) is not None
    assert counted(parts.db.engine) == kept(parts.db.engine)
    assert run(parts, clean_up) == {}


def test_pinned_chats_and_those_in_which_a_turn_runs_stay(
    parts: Parts, clean_up: CleanUp, ann: Person
) -> None:
    pinned, unpinned = ann.new_chat(), ann.new_chat()
    ann.post(f"/chat/{pinned}/pin", pinned="1")
    running = someone(parts, "rita")
    with parts.binder.bound(running):
        turn = begin(parts.turns.kit, running, "Hello")
    for chat in (pinned, unpinned, running.session_id):
        age(parts, chat, 400)
    assert run(parts, clean_up, dry_run=True) == run(parts, clean_up) == {"chats": 1}
    assert chats_of(parts, ann) == {pinned}
    for _ in turn:
        pass
    with parts.binder.bound(running):
        assert parts.turns.kit.store.find(running, turn.id).result.status == "completed"


def test_a_tenants_own_days_count_and_none_keeps_everything(
    app: Flask, parts: Parts, clean_up: CleanUp, ann: Person, bob: Person
) -> None:
    cleo = person(app, "cleo", tenant="keepers")
    chats = {who.name: who.new_chat() for who in (ann, bob, cleo)}
    for chat in chats.values():
        age(parts, chat, 10)
    for who, days in ((bob, 7), (cleo, 0)):
        tenant_id = scope_of(parts, who).tenant_id
        with parts.binder.bound(BY):
            parts.admin.retention.change(tenant_id, days, None, BY)
    assert run(parts, clean_up) == {"chats": 1}
    assert [len(chats_of(parts, who)) for who in (ann, bob, cleo)] == [1, 0, 1]
    for chat in chats.values():
        age(parts, chat, 4000) if chat != chats["bob"] else None
    assert run(parts, clean_up) == {"chats": 1}
    assert [len(chats_of(parts, who)) for who in (ann, bob, cleo)] == [0, 0, 1]


def test_a_tenants_own_number_goes_before_the_settings() -> None:
    assert (Keeping(None).days, Keeping(30).days) == (None, 30)
    assert (Keeping(30, 0).days, Keeping(30, 7).days, Keeping(None, 7).days) == (None, 7, 7)
    assert (Keeping(30, 0).before(NOW), Keeping(30).before(NOW)) == (None, NOW - timedelta(days=30))


class OneByOne:
    def __init__(self, db: Session) -> None:
        self._db = db

    def add(self, row: Any) -> None:
        self._db.add(row)
        self._db.flush()


def plant(parts: Parts, who: Person) -> None:
    """One old row and one recent row of each kind."""
    scope = scope_of(parts, who)
    with parts.db.writing() as session:
        db = OneByOne(session)
        for n, at in enumerate((LONG_AGO, NOW - timedelta(minutes=2))):
            soon = at + timedelta(minutes=10)
            db.add(Login(digest=f"d{n}", user_id=scope.user_id, created_at=at, expires_at=soon))
            db.add(SetupLink(digest=f"s{n}", created_at=at if n == 0 else NOW))
            db.add(WorkerRow(id=f"w{n}", host="h", pid=n, started_at=at, seen_at=at, numbers={}))
            minute = int(at.timestamp() // 60)
            for name in ("one", "two"):
                db.add(MinuteCount(name=name, tenant_id="", minute=minute, label="", amount=1))
            for tenant_id in (scope.tenant_id, None):
                entry = AuditEntry("signed-in", tenant_id=tenant_id)
                db.add(AuditRow(**{**entry.values(at)}))
            db.add(
                ChargedTurn(
                    turn_id=f"t{n}", tenant_id=scope.tenant_id, user_id=scope.user_id, session_id="gone",
                    spent=[], charged_at=at,
                )
            )  # fmt: skip
            for acknowledged in (None, at):
                db.add(
                    AlertRow(
                        id=new_id(), kind=f"k{n}", severity="error", subject="", detail="", request_id="",
                        count=1, first_at=at, last_at=at, acknowledged_at=acknowledged,
                        delivery_attempts=0, delivery_problem="",
                    )
                )  # fmt: skip


def test_rows_that_are_too_old_go_and_the_others_stay(parts: Parts, clean_up: CleanUp, ann: Person) -> None:
    plant(parts, ann)
    wanted = {
        "ended logins": 1,
        "set-up links": 1,
        "workers that are gone": 1,
        "counts by minute": 2,
        "audit rows": 2,
        "charges of ended turns": 1,
        "acknowledged alerts": 1,
    }
    assert run(parts, clean_up, dry_run=True) == wanted
    assert run(parts, clean_up) == wanted
    with parts.db.writing() as db:
        counts = {
            table.__tablename__: db.scalar(select(func.count()).select_from(table))
            for table in (SetupLink, WorkerRow, MinuteCount, AlertRow)
        }
        assert counts == {"setup_links": 1, "workers": 1, "minute_counts": 2, "alerts": 3}
    assert run(parts, clean_up) == {}


@only_sqlite
def test_no_big_table_is_read_as_a_whole(parts: Parts, clean_up: CleanUp, ann: Person) -> None:
    plant(parts, ann)
    age(parts, ann.new_chat(), 100)
    big = "sessions|messages|turns|audit_log|minute_counts|guardrail_cells|logins|users"
    for dry_run in (True, False):
        with scans_noted(parts.db, big) as scans:
            assert run(parts, clean_up, dry_run=dry_run)
        # Whether there is any user at all ends at the first one; and of all turns only few run.
        few = ("SCAN users USING COVERING INDEX", "SCAN turns USING INDEX uq_turns_one_running")
        assert [scan for scan in scans if not scan.startswith(few)] == []
    with scans_noted(parts.db, "sessions") as scans, parts.db.engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM sessions WHERE title = 'tenant_id = user_id ='")
    assert scans == ["SCAN sessions"], "such a step is noticed"


def fill_audit_log(parts: Parts, at: datetime) -> None:
    with parts.db.transaction() as db:
        db.run_many(ADD_ENTRY, [{**AuditEntry("signed-in").values(at), "at": at}] * 450)


def test_many_rows_go_in_several_short_transactions(parts: Parts, clean_up: CleanUp) -> None:
    fill_audit_log(parts, LONG_AGO)
    with parts.binder.bound(BY):
        steps = [swept for swept in clean_up.steps(NOW) if swept.rows]
    assert [swept.rows for swept in steps] == [200, 200, 50]


def test_what_was_removed_is_in_the_audit_log_for_each_tenant(
    parts: Parts, clean_up: CleanUp, ann: Person, bob: Person
) -> None:
    plant(parts, ann)
    for who in (ann, bob):
        age(parts, who.new_chat(), 100)
    run(parts, clean_up, dry_run=True)
    run(parts, clean_up)
    with parts.db.writing() as db:
        rows = db.scalars(select(AuditRow).where(AuditRow.action == "cleaned-up")).all()
        found = {row.tenant_id: row.detail for row in rows}
        assert len(rows) == 3
    assert found[scope_of(parts, ann).tenant_id] == {"chats": 1, "audit rows": 1}
    assert found[scope_of(parts, bob).tenant_id] == {"chats": 1}
    assert found[None]["ended logins"] == 1


def cells_in(parts: Parts) -> set[tuple[str, str]]:
    with parts.db.writing() as db:
        return {(row[0], row[1]) for row in db.execute(select(GuardrailCell.scope, GuardrailCell.id))}


def test_cells_go_if_they_count_for_nothing_and_all_others_stay(
    parts: Parts, clean_up: CleanUp, ann: Person
) -> None:
    scope = scope_of(parts, ann)
    used = scope.within(ann.new_chat())
    ann.ask(used.session_id, "Hello")
    registry = parts.turns.kit.guardrails.registry
    now = parts.turns.kit.guardrails.clock()

    def put(key: Key, change: Callable[[Any], Any]) -> Key:
        with parts.binder.bound(BY):
            registry.update(key, change)
        return key

    failing = put(Key("user", "f"), lambda c: replace(c, breaker=c.breaker.failed(0, now - 9e5)))
    forced = put(Key("user", "g"), lambda c: replace(c, breaker=c.breaker.force("open")))
    limited = put(Key("user", "l"), lambda c: replace(c, limits=(("budget", 7),)))
    holding = put(Key("user", "h"), lambda c: replace(c, bulkhead=c.bulkhead.enter(now)))
    spending = put(Key("user", "s"), lambda c: replace(c, budget=c.budget.charge(5, now)))
    spent = put(Key("user", "p"), lambda c: replace(c, budget=c.budget.charge(5, now - 9e5)))
    forgotten = put(Key("login-name", "n"), lambda c: replace(c, bulkhead=c.bulkhead.enter(now - 9e5)))
    of_no_chat = put(Key("session", "x"), lambda c: replace(c, budget=c.budget.charge(5, now)))
    idle = {spent, forgotten, of_no_chat}
    stay = {failing, forced, limited, holding, spending, Key("session", used.session_id)}
    assert run(parts, clean_up) == {}, "they were all changed just now"
    with parts.db.writing() as db:
        db.execute(update(GuardrailCell).values(updated_at=now - 9e5))
    before = cells_in(parts)
    assert before >= idle | stay
    decisions = {key: decision(parts, key) for key in before - {tuple(of_no_chat)}}
    counted = run(parts, clean_up, dry_run=True)
    assert run(parts, clean_up) == counted
    after = cells_in(parts)
    assert after >= stay
    assert not after & idle
    assert {scope for scope, _ in before - after} <= {
        "user",
        "session",
        "login-name",
        "login-attempts",
        "login-address",
    }
    assert {key: decision(parts, key) for key in decisions} == decisions, "no decision is another one"


def decision(parts: Parts, key: tuple[str, str]) -> tuple[object, ...]:
    """What the guardrails would say to the next one, by this cell."""
    guardrails = parts.turns.kit.guardrails
    with parts.binder.bound(BY):
        cell = guardrails.registry.get(Key(*key))
    now = guardrails.clock()

    def refused(ask: Callable[[], object]) -> str | None:
        try:
            ask()
        except GuardrailRefused as refusal:
            return refusal.code
        return None

    return (
        refused(lambda: cell.breaker.admit(now)),
        refused(lambda: cell.bucket.take(now)),
        refused(lambda: cell.bulkhead.enter(now)),
        cell.budget.left(now),
        cell.budget.used(now),
        cell.limits,
        cell.tools,
    )


def test_a_clean_up_that_is_interrupted_has_done_what_it_says(parts: Parts, clean_up: CleanUp) -> None:
    fill_audit_log(parts, LONG_AGO)
    stops = iter([False, True])
    with parts.binder.bound(BY):
        tally, is_complete = clean_up.run(
            NOW, dry_run=False, is_over=lambda: next(stops, True), rest=lambda seconds: None
        )
    assert not is_complete
    with parts.db.writing() as db:
        left = (
            db.scalar(select(func.count()).select_from(AuditRow).where(AuditRow.action == "signed-in")) or 0
        )
    assert 0 < left < 450
    assert 450 - left == tally.by_kind()["audit rows"]


def test_of_two_workers_one_cleans_up(make_app: Callable[..., Flask], wanted: Settings, parts: Parts) -> None:
    second: Parts = make_app(wanted=wanted).extensions["agentapp"]
    clock = [NOW]
    jobs = [scheduled(each, clock) for each in (parts, second)]
    for now in (0, LOOK_SECONDS):
        for each, job, _ in jobs:
            beat(each, job, now)
    assert [len(done) for *_, done in jobs] == [0, 0], "not at once after the start"
    clock[0] += timedelta(minutes=6)
    at_once(lambda which: beat(*jobs[which][:2], 2 * LOOK_SECONDS), 2)
    assert sorted(len(done) for *_, done in jobs) == [0, 1]
    for number in range(3):
        for each, job, _ in jobs:
            beat(each, job, (number + 3) * LOOK_SECONDS)
    assert sorted(len(done) for *_, done in jobs) == [0, 1], "not before the next hour"
    clock[0] += EVERY
    for each, job, _ in jobs:
        beat(each, job, 9 * LOOK_SECONDS)
    assert sum(len(done) for *_, done in jobs) == 2


def scheduled(parts: Parts, clock: list[datetime]) -> tuple[Parts, ScheduledCleanUp, list[datetime]]:
    done: list[datetime] = []

    class Noted:
        kind = "chats"

        def sweep(self, now: datetime, *, dry_run: bool) -> Any:
            done.append(now)
            yield Swept("chats", None, 0)

    job = ScheduledCleanUp(
        CleanUp([Noted()], parts.admin.retention), BackgroundJobs(parts.db), lambda: clock[0]
    )
    return parts, job, done


def beat(parts: Parts, job: ScheduledCleanUp, now: float) -> None:
    with parts.binder.bound(RequestScope(request_id=new_id())):
        while job.run(now):
            pass


def at_once(do: Callable[[int], object], times: int) -> None:
    barrier = threading.Barrier(times)

    def together(which: int) -> None:
        barrier.wait()
        do(which)

    threads = [threading.Thread(target=together, args=(n,)) for n in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_beat_does_only_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentapp.retention.schedule.SLICE_SECONDS", 0.0)
    log = Recorded()
    job = ScheduledCleanUp(CleanUp([Endless()], log), Due(), lambda: NOW)
    assert [job.run(n * LOOK_SECONDS) for n in range(4)] == [False, True, True, True]
    assert log.records == []


def test_one_that_takes_too_long_ends_and_says_what_it_has_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentapp.retention.schedule.SLICE_SECONDS", 0.0)
    log, clock = Recorded(), [NOW]
    job = ScheduledCleanUp(CleanUp([Endless()], log), Due(), lambda: clock[0])
    assert not job.run(0), "it has just started"
    assert job.run(LOOK_SECONDS)
    clock[0] += EVERY
    assert not job.run(LOOK_SECONDS + 1)
    assert log.records == [{None: {"things": 2}}]


def test_one_that_fails_says_what_it_has_done_and_begins_anew_the_next_time() -> None:
    log = Recorded()
    job = ScheduledCleanUp(CleanUp([Failing()], log), Due(), lambda: NOW)
    job.run(0)
    for number in (1, 2):
        with pytest.raises(StorageUnavailable):
            job.run(number * LOOK_SECONDS)
    assert log.records == [{None: {"things": 1}}] * 2


class Recorded:
    def __init__(self) -> None:
        self.records: list[Any] = []

    def record(self, swept: Any) -> None:
        self.records.append(swept)


class Due:
    def announce(self, name: str, first_at: datetime) -> None:
        assert name == NAME

    def is_due(self, name: str, now: datetime) -> bool:
        return True

    def claim(self, name: str, now: datetime, next_at: datetime) -> bool:
        return True


class Endless:
    kind = "things"

    def sweep(self, now: datetime, *, dry_run: bool) -> Any:
        while True:
            yield Swept(self.kind, None, 1)


class Failing:
    kind = "things"

    def sweep(self, now: datetime, *, dry_run: bool) -> Any:
        yield Swept(self.kind, None, 1)
        raise StorageUnavailable("away")


def test_few_are_taken_at_once_while_each_takes_long() -> None:
    pace = Pace(8)
    for _ in range(5):
        pace.took(0.001)
    assert pace.count == 8
    pace.took(1.0)
    assert pace.count == 4
    pace.took(0.03)
    assert pace.count == 4


def test_a_tally_adds_up_by_kind_and_by_tenant() -> None:
    tally = Tally()
    for swept in (Swept("a", "t", 2), Swept("a", None, 3), Swept("b", "t", 0)):
        tally.add(swept)
    assert tally.by_kind() == {"a": 5}
    assert tally.by_tenant() == {"t": {"a": 2}, None: {"a": 3}}
