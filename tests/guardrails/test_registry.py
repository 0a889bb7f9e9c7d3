"""The registry and its rows, on SQLite and on PostgreSQL: the row is the truth, memory is only memory."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from flask import Flask
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import text

from agentapp.config import Settings
from agentapp.errors import RateLimited
from agentapp.guardrails import (
    Allowance,
    Breaker,
    BreakerPolicy,
    Breakers,
    Cell,
    CellPolicy,
    Cells,
    Key,
    Rate,
    Registry,
)
from agentapp.guardrails.admission import MaxCost
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.outage import Person
from agentapp.isolation import RequestScope, Scope, ThreadBinder
from agentapp.storage.cells import CellRows, CellStore
from agentapp.storage.db import Database
from tests.support.guardrail_models import START, Clock, machine_settings, refusal_of
from tests.support.statements import statements_noted
from tests.support.users import person

SCOPE = RequestScope(request_id="r")
SAME = CellPolicy(BreakerPolicy(failures=2), Rate(7, 60), Allowance(100), 3)
POLICIES = dict.fromkeys(("session", "user", "tenant", "provider"), SAME)


class Worker:
    """What one process has: an engine, a store, a registry."""

    def __init__(self, url: str, kind: Any = None, **limits: int) -> None:
        self.binder = ThreadBinder()
        self.db = Database(url, self.binder)
        self.store = CellStore(self.db)
        self._kind, self._limits = kind or Cells(POLICIES), limits
        self.start_again()

    def start_again(self) -> None:
        self.registry: Registry[Key, Cell] = Registry(self._kind, self.store, **self._limits)

    def look(self, *keys: Key) -> tuple[Cell, ...]:
        with self.binder.bound(SCOPE):
            return self.registry.look(keys)


@pytest.fixture
def workers(database_url: str) -> Iterator[list[Worker]]:
    made = [Worker(database_url, cap=4, cleanup_every=3) for _ in range(2)]
    yield made
    for worker in made:
        left = worker.db.connections_in_use()
        worker.db.close()
        assert left == 0


# --- any updates, by two workers ------------------------------------------------------------------

CHANGES: dict[str, Callable[[Cell], Cell]] = {
    "fail": lambda cell: replace(cell, breaker=cell.breaker.failed(cell.breaker.generation, START)),
    "succeed": lambda cell: replace(cell, breaker=cell.breaker.succeeded(cell.breaker.generation, START)),
    "reset": lambda cell: replace(cell, breaker=cell.breaker.reset()),
    "force": lambda cell: replace(cell, breaker=cell.breaker.force("open")),
    "probe": lambda cell: replace(cell, breaker=cell.breaker.admit(START + 3600)),  # may raise
    "take": lambda cell: replace(cell, bucket=cell.bucket.take(START)),  # may raise
    "enter": lambda cell: replace(cell, bulkhead=cell.bulkhead.enter(START)),  # may raise
    "charge": lambda cell: replace(cell, budget=cell.budget.charge(7, START)),
    "reserve": lambda cell: replace(cell, budget=cell.budget.reserve(cell.budget.fits(30, START), START)),
    "go down": lambda cell: replace(cell, outage=cell.outage.failed(Person("t", "ann"), START)),
    "call tools": lambda cell: replace(cell, tools=cell.tools_after((("clock", 2),))),
    "nothing": lambda cell: cell,
}
KEYS = [Key(scope, id) for scope in POLICIES for id in ("1", "2", "it's; --")]
SOME_KEYS = st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True)
NAMES = st.sampled_from(sorted(CHANGES))
WHO = st.integers(0, 1)


class Interrupted(Exception):
    pass


class RegistryMachine(RuleBasedStateMachine):
    """Two workers with little memory against one dict."""

    workers: ClassVar[list[Worker]]

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[Key, Cell] = {}
        with self.workers[0].db.writing() as db:
            db.execute(text("DELETE FROM guardrail_cells"))
        for worker in self.workers:
            worker.start_again()

    def _value(self, key: Key) -> Cell:
        return self.model.get(key) or Cells(POLICIES).fresh(key)

    @rule(who=WHO, key=st.sampled_from(KEYS), name=NAMES)
    def one_is_changed(self, who: int, key: Key, name: str) -> None:
        """If the change raises, the value stays as it was."""
        before = self._value(key)
        wanted = refusal_of(lambda: self.model.update({key: CHANGES[name](before)}))
        got: list[Cell] = []
        update = self.workers[who].registry.update
        refusal = refusal_of(lambda: got.append(update(key, CHANGES[name])))
        assert str(refusal) == str(wanted)
        assert got == ([] if wanted else [self.model[key]])

    @rule(who=WHO, keys=SOME_KEYS, name=NAMES)
    def several_are_changed_all_or_none(self, who: int, keys: list[Key], name: str) -> None:
        before = [self._value(key) for key in keys]
        made: dict[Key, Cell] = {}
        wanted = refusal_of(
            lambda: made.update((key, CHANGES[name](cell)) for key, cell in zip(keys, before, strict=True))
        )
        refusal = refusal_of(lambda: self._change(who, keys, name))
        assert str(refusal) == str(wanted)
        self.model |= {} if wanted else made

    @rule(who=WHO, keys=SOME_KEYS, name=NAMES)
    def a_transaction_fails_after_the_change(self, who: int, keys: list[Key], name: str) -> None:
        """The change was made and is in the cache, but its transaction is rolled back."""
        try:
            with self.workers[who].store.transaction() as rows:
                change = self.workers[who].registry.change
                refusal_of(lambda: change(rows, keys, lambda cells: [CHANGES[name](c) for c in cells]))
                raise Interrupted
        except Interrupted:
            pass

    @rule(who=WHO, key=st.sampled_from(KEYS))
    def a_row_is_removed(self, who: int, key: Key) -> None:
        with self.workers[who].store.transaction() as rows:
            rows.remove(key)  # type: ignore[attr-defined]
        self.model.pop(key, None)

    @rule(who=WHO, keys=SOME_KEYS)
    def some_are_looked_at(self, who: int, keys: list[Key]) -> None:
        assert self.workers[who].look(*keys) == tuple(self._value(key) for key in keys)

    @rule(who=WHO)
    def memory_is_cleaned_up(self, who: int) -> None:
        self.workers[who].registry.clean_up()

    @rule(who=WHO)
    def a_worker_starts_again(self, who: int) -> None:
        self.workers[who].start_again()

    def _change(self, who: int, keys: list[Key], name: str) -> None:
        worker = self.workers[who]
        with worker.store.transaction() as rows:
            worker.registry.change(rows, keys, lambda cells: [CHANGES[name](cell) for cell in cells])

    @invariant()
    def memory_never_exceeds_the_cap(self) -> None:
        assert all(len(worker.registry) <= 4 for worker in self.workers)

    def teardown(self) -> None:
        for key in KEYS:
            for worker in self.workers:
                assert worker.look(key) == (self._value(key),)


def test_whatever_two_workers_do_every_value_is_as_in_a_dict(workers: list[Worker]) -> None:
    machine = type("Machine", (RegistryMachine,), {"workers": workers})
    run_state_machine_as_test(machine, settings=machine_settings(10, 30))


# --- at once --------------------------------------------------------------------------------------


def test_of_twenty_first_calls_at_once_as_many_pass_as_the_bucket_holds(workers: list[Worker]) -> None:
    """There is no row yet that could be locked; half of the calls come from another worker."""
    for attempt in range(5):
        key, ready = Key("session", f"new-{attempt}"), threading.Barrier(20)

        def call(n: int, key: Key = key, ready: threading.Barrier = ready) -> bool:
            registry = workers[n % 2].registry
            ready.wait(20)
            return refusal_of(lambda: registry.update(key, CHANGES["take"])) is None

        with ThreadPoolExecutor(20) as pool:
            passed = list(pool.map(call, range(20)))
        assert passed.count(True) == 7
        assert workers[0].look(key)[0].bucket.used(START) == 7


def test_the_first_turns_of_new_users_never_wait_for_each_other_in_a_circle(workers: list[Worker]) -> None:
    """Again and again a new tenant, three new users, twelve new sessions; only the provider is known."""
    provider, rounds = Key("provider", "demo"), 25
    workers[0].registry.update(provider, CHANGES["charge"])
    ready = threading.Barrier(12)

    def turns(n: int) -> None:
        for again in range(rounds):
            mine = Key("session", f"{again}-{n}"), Key("user", f"{again}-{n % 3}")
            ready.wait(60)
            charge_all(workers[n % 2], (*mine, Key("tenant", f"{again}"), provider))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(turns, range(12)))
    assert workers[0].look(provider)[0].budget.used(START) == 7 + 7 * 12 * rounds
    for again in range(rounds):
        tenant, user = workers[1].look(Key("tenant", f"{again}"), Key("user", f"{again}-0"))
        assert (tenant.budget.used(START), user.budget.used(START)) == (7 * 12, 7 * 4)


def test_a_row_that_appears_while_one_waits_leads_to_no_deadlock(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant is new. The second finds no row of it and waits for the provider, held by the first; the
    first commits; before the second has made sure of the tenant, a third comes for both.
    """
    if workers[0].db.engine.dialect.name == "sqlite":
        pytest.skip("there the whole transaction is one lock")
    provider, tenant = Key("provider", "demo"), Key("tenant", "new")
    charge_all(workers[0], (provider,))
    third = ThreadPoolExecutor(1)
    came: list[Any] = []

    def hurry(rows: CellRows, keys: Sequence[Key]) -> None:
        if rows._store is workers[1].store and not came:
            came.append(third.submit(charge_all, workers[0], (Key("user", "3"), tenant, provider)))
            time.sleep(0.3)
        claim(rows, keys)

    claim = CellRows._claim
    monkeypatch.setattr(CellRows, "_claim", hurry)
    with third, ThreadPoolExecutor(1) as pool:
        with workers[0].store.transaction() as rows:
            both = (tenant, provider)
            workers[0].registry.change(rows, both, lambda cells: list(map(CHANGES["charge"], cells)))
            second = pool.submit(charge_all, workers[1], (Key("user", "2"), tenant, provider))
            time.sleep(0.3)
        second.result(10)
        came[0].result(10)
    assert [cell.budget.used(START) for cell in workers[0].look(tenant, provider)] == [7 * 3, 7 * 4]


def charge_all(worker: Worker, keys: Sequence[Key]) -> None:
    with worker.store.transaction() as rows:
        worker.registry.change(rows, keys, lambda cells: [CHANGES["charge"](cell) for cell in cells])


def test_looking_waits_for_nobody_and_sees_only_what_was_committed(workers: list[Worker]) -> None:
    key = Key("user", "1")
    with workers[0].store.transaction() as rows:
        workers[0].registry.change(rows, (key,), lambda cells: [CHANGES["charge"](cells[0])])
        assert workers[1].look(key)[0].budget.used(START) == 0
    assert workers[1].look(key)[0].budget.used(START) == 7


def test_the_mark_of_a_row_is_found_without_reading_its_state(workers: list[Worker]) -> None:
    for id, names in (("calm", ["take"]), ("failing", ["fail"]), ("open", ["fail", "fail"])):
        for name in names:
            workers[0].registry.update(Key("session", id), CHANGES[name])
    with workers[1].db.engine.connect() as raw:
        found = raw.execute(text("SELECT id, mark FROM guardrail_cells WHERE mark <> '' ORDER BY id"))
        assert [tuple(row) for row in found] == [("failing", "failing"), ("open", "open")]


# --- memory ---------------------------------------------------------------------------------------


class Shelf:
    """A store in a dict; ``slow`` runs where a real one would wait for its rows."""

    def __init__(self, slow: Callable[[], object] = lambda: None) -> None:
        self.texts: dict[Any, str] = {}
        self._slow = slow

    @contextmanager
    def transaction(self) -> Iterator[Shelf]:
        yield self

    def read(self, keys: Sequence[Any], unlocked: Sequence[Any] = ()) -> Mapping[Any, str]:
        self._slow()
        return self.look((*keys, *unlocked))

    def write(self, rows: Sequence[tuple[Any, str, str]]) -> None:
        self.texts |= {key: state for key, state, _ in rows}

    def look(self, keys: Sequence[Any]) -> Mapping[Any, str]:
        return {key: self.texts[key] for key in keys if key in self.texts}


class CountingBreakers(Breakers):
    """Knows which keys had to be read from their text."""

    def __init__(self) -> None:
        super().__init__(BreakerPolicy(failures=2))
        self.loads: Counter[object] = Counter()

    def load(self, key: object, text: str) -> Breaker:
        self.loads[key] += 1
        return super().load(key, text)


def _fail(breaker: Breaker) -> Breaker:
    return breaker.failed(breaker.generation, START)


def _heal(breaker: Breaker) -> Breaker:
    return breaker.succeeded(breaker.generation, START)


def remembered(registry: Registry[Any, Breaker], kind: CountingBreakers, keys: Sequence[Any]) -> list[Any]:
    """Those that are in memory: looking at them reads no text."""
    kind.loads.clear()
    return [key for key in keys if registry.get(key) and not kind.loads[key]]


def test_beyond_the_cap_the_unused_go_first_then_the_longest_unchanged() -> None:
    kind = CountingBreakers()
    registry: Registry[str, Breaker] = Registry(kind, Shelf(), cap=6, cleanup_every=1_000)
    for key in ("open-1", "calm-1", "open-2", "calm-2", "open-3", "open-4"):
        registry.update(key, _fail)
        registry.update(key, _heal if key.startswith("calm") else _fail)
    registry.update("open-5", _fail)
    assert len(registry) == 6
    assert "calm-1" not in registry._cache
    registry.update("open-6", _fail)
    assert "calm-2" not in registry._cache
    registry.update("open-7", _fail)
    assert list(registry._cache) == ["open-2", "open-3", "open-4", "open-5", "open-6", "open-7"]


def test_what_has_something_to_tell_stays_however_idle_and_the_unused_goes_when_idle() -> None:
    kind = CountingBreakers()
    registry: Registry[Any, Breaker] = Registry(kind, Shelf(), cap=1_000, cleanup_every=10)
    registry.update("open", _fail)
    registry.update("calm", _fail)
    registry.update("calm", _heal)
    assert remembered(registry, kind, ["open", "calm"]) == ["open", "calm"]
    for _ in range(30):
        registry.update("busy", _fail)
    assert remembered(registry, kind, ["open", "busy"]) == ["open", "busy"]
    assert remembered(registry, kind, ["calm"]) == []


def test_memory_is_small_after_any_number_of_keys() -> None:
    registry: Registry[int, Breaker] = Registry(Breakers(), Shelf(), cap=50)
    for key in range(3_000):
        registry.update(key, _fail)
        assert len(registry) <= 50
    assert all(registry.get(key).failures == 1 for key in range(3_000))
    assert len(registry) <= 50


# --- time -----------------------------------------------------------------------------------------


def test_who_waited_long_for_the_rows_decides_by_the_time_it_is_then() -> None:
    """It waits eight seconds while others fill the bucket: when it began, those hits were in the future."""
    clock = Clock()
    shelf = Shelf(slow=lambda: clock.advance(8))
    guardrails = Guardrails(Registry(Cells(POLICIES), shelf), "demo", clock=lambda: clock.now)
    scope = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
    full = Cells(POLICIES).fresh(Key("session", "s"))
    for _ in range(7):
        full = replace(full, bucket=full.bucket.take(clock.now + 7))
    shelf.texts[Key("session", "s")] = Cells(POLICIES).dump(full)
    with pytest.raises(RateLimited):
        guardrails.admit(shelf, scope, MaxCost(1, 1))


# --- a table with a million rows ------------------------------------------------------------------

MANY = 1_000_000
FILL = """
    INSERT INTO guardrail_cells (scope, id, state, mark, updated_at)
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :many)
    SELECT 'session', printf('%032d', i), '{"breaker":{"token":1,"failures":3}}',
           CASE WHEN i % 1000 = 0 THEN 'open' ELSE '' END, 1.7e9 FROM n
"""


def _file_of(settings: Settings) -> str:
    return settings.database_url.removeprefix("sqlite:///")


def test_starting_and_serving_reads_no_more_rows_than_it_needs(
    settings: Settings, make_app: Callable[..., Flask]
) -> None:
    began = time.monotonic()
    with sqlite3.connect(_file_of(settings)) as raw:
        raw.execute(FILL, {"many": MANY})
    raw.close()
    assert time.monotonic() - began < 60, "filling the table is not what is measured"
    statements: list[tuple[str, Any]] = []

    def note(statement: str, parameters: Any) -> None:
        if "guardrail_cells" in statement:
            statements.append((statement, parameters))

    with statements_noted(note):
        app = make_app()
        registry = app.extensions["agentapp"].turns.kit.guardrails.registry
        assert (len(registry), statements) == (0, []), "nothing is read before it is needed"
        ann = person(app, "ann")
        assert ann.ask(ann.new_chat(), "what is 2 + 2?")["status"] == "completed"
        assert ann.get("/chat").status_code == 200
    assert 4 <= len(registry) <= 8, "a session, a user, a tenant, a provider, and who signed in from where"
    _check_reads_only_by_key(_file_of(settings), statements)


def _check_reads_only_by_key(file: str, statements: list[tuple[str, Any]]) -> None:
    reads = [one for one in statements if not one[0].lstrip().upper().startswith("INSERT")]
    assert reads
    raw = sqlite3.connect(file)
    for statement, parameters in reads:
        where = statement.split("WHERE", 1)[1]
        assert "scope = ?" in where, statement
        assert "id = ?" in where, statement
        plan = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        assert not [step for step in plan if step.startswith("SCAN")], plan
    raw.close()
