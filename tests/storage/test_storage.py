"""The stores, the same claims on SQLite and on PostgreSQL."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agentapp.agents import Agent, Limits, Team
from agentapp.agents.prices import Prices
from agentapp.errors import IdempotencyMismatch, NotBound, NotFound, StorageUnavailable, TurnInProgress
from agentapp.events import Rendered, TurnResult, Usage
from agentapp.guardrails import BreakerPolicy, CellPolicy, Cells, Registry
from agentapp.guardrails.admission import Reservation, TurnCells
from agentapp.guardrails.changes import Settled
from agentapp.guardrails.guard import Guardrails
from agentapp.isolation import RequestScope, Scope, ThreadBinder, UserScope
from agentapp.storage.accounts import Accounts
from agentapp.storage.cells import CellStore
from agentapp.storage.chats import Chats
from agentapp.storage.db import Database
from agentapp.storage.engines import POSTGRES_WRITERS
from agentapp.storage.notes import Notes
from agentapp.storage.turns import SqlTurnStore
from agentapp.telemetry import NullTelemetry
from agentapp.turns.abandoned import delete_chat
from agentapp.turns.kit import TurnKit
from agentapp.turns.leases import Leases
from agentapp.turns.live_agents import LiveAgents
from agentapp.turns.turn import Turn
from agentapp.turns.values import Lease, NewMessage, RepeatedMessage, StartedTurn, title_of
from tests.support.statements import statements_noted
from tests.support.turns import store_end

PASSWORD = "a long enough password"
LEASE = Lease("this worker", timedelta(seconds=60))
OVER = Lease("a worker that died", timedelta(seconds=-1))
MAX_TOKENS, PRICE = 1_000, 2.0
NOTHING = Reservation(0.0, 0, 0, 0, 0, 0, 0)


class Stores:
    """All stores over one database, and guardrails that count everything and refuse nothing."""

    def __init__(self, url: str) -> None:
        self.binder = ThreadBinder()
        self.db = Database(url, self.binder)
        self.accounts, self.chats = Accounts(self.db), Chats(self.db)
        self.cells, self.notes = CellStore(self.db), Notes(self.db)
        terms = CellPolicy(BreakerPolicy(failures=10**9), lease=LEASE.length.total_seconds())
        kind = Cells(dict.fromkeys(("session", "user", "tenant", "provider"), terms))
        self.guardrails = Guardrails(Registry(kind, self.cells), "demo", self.db.clock.now)
        self.turns = SqlTurnStore(self.db, self.cells)

    def user(self, name: str, tenant: str = "default") -> UserScope:
        user = self.accounts.add(name, PASSWORD, tenant=tenant)
        return UserScope(request_id=f"r-{name}", tenant_id=user.tenant_id, user_id=user.id)

    def chat(self, scope: UserScope) -> Scope:
        return scope.within(self.chats.create(scope).id)

    def turn(self, scope: Scope, message: str, reply: str = "the reply") -> str:
        turn = self.begin(scope, message)
        assert settle(turn, reply)
        return str(turn.id)

    def begin(self, scope: Scope, text: str, key: str | None = None, lease: Lease = LEASE) -> Any:
        return Turn.begin(self.kit(lease), scope, NewMessage(text, key))

    def kit(self, lease: Lease = LEASE) -> TurnKit:
        """Enough to begin and settle turns; nothing to play them with."""
        nothing: Any = None
        return TurnKit(
            store=self.turns,
            guardrails=self.guardrails,
            leases=FixedLease(lease),
            team=Team(Agent("triage", "Go.")),
            driver=nothing,
            model="m",
            limits=Limits(tokens=MAX_TOKENS),
            notes=self.notes,
            past_chats=self.chats,
            prices=Prices((("m", PRICE, PRICE, PRICE, PRICE),)),
            telemetry=NullTelemetry(),
            live_agents=LiveAgents(),
            render=lambda text: Rendered(f"<p>{text}</p>", "test"),
        )

    def delete_chat(self, scope: Scope) -> None:
        delete_chat(self.turns, self.kit().ends, scope)

    def held(self, scope: Scope) -> dict[str, tuple[int, int]]:
        """How many turns are under way, and how much is reserved for them."""
        now = self.guardrails.clock()
        cells = TurnCells(
            *read(self, scope, lambda: self.guardrails.registry.look(self.guardrails.keys(scope)))
        )
        return {
            "session": (0, cells.session.budget.holds.amount(now)),
            "user": (cells.user.bulkhead.holds.count(now), cells.user.budget.holds.amount(now)),
            "tenant": (cells.tenant.bulkhead.holds.count(now), cells.tenant.budget.holds.amount(now)),
        }

    def used(self, scope: Scope) -> dict[str, int]:
        """What is noted as spent."""
        now, registry = self.guardrails.clock(), self.guardrails.registry
        cells = read(self, scope, lambda: registry.look(self.guardrails.keys(scope)[:3]))
        return dict(zip(("session", "user", "tenant"), (c.budget.used(now) for c in cells), strict=True))


NOTHING_HELD = {"session": (0, 0), "user": (0, 0), "tenant": (0, 0)}


class FixedLease(Leases):
    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease

    def current(self) -> Lease:
        return self._lease


def settle(turn: Turn, reply: str = "the reply") -> bool:
    """As a turn that went well and used 7 tokens, which cost 9."""
    result = TurnResult(
        "completed", reply, "triage", usage=Usage(3, 4, 1), cost_microusd=9, charged_microusd=9
    )
    return store_end(turn, result)


@pytest.fixture
def stores(database_url: str) -> Iterator[Stores]:
    made = Stores(database_url)
    yield made
    left = made.db.connections_in_use(), made.db.open_readers()
    made.db.close()
    assert left == (0, 0)


def read(stores: Stores, scope: RequestScope, job: Any) -> Any:
    with stores.binder.bound(scope):
        return job()


def test_messages_are_numbered_without_gaps_by_many_writers_at_once(stores: Stores) -> None:
    """Twelve chats of one user, four turns each, all at the same time."""
    ann = stores.user("ann")
    chats = [stores.chat(ann) for _ in range(12)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda chat: [stores.turn(chat, f"m{n}") for n in range(4)], chats))
    for chat in chats:
        messages = read(stores, chat, lambda chat=chat: stores.chats.transcript(chat)).messages
        assert [m.seq for m in messages] == list(range(1, 9))
        assert [m.role for m in messages] == ["user", "assistant"] * 4


def test_a_turn_that_cost_a_fortune_is_stored(stores: Stores) -> None:
    """If it could not be, its chat would be stuck for good."""
    chat = stores.chat(stores.user("ann"))
    turn, fortune = stores.begin(chat, "hello"), 10**13
    assert store_end(turn, TurnResult("completed", "dear", cost_microusd=fortune, charged_microusd=fortune))
    whole = read(stores, chat, lambda: stores.chats.transcript(chat))
    assert [each.result.cost_microusd for each in whole.turns] == [fortune]


def test_of_many_who_begin_a_turn_at_once_one_is_let_in(stores: Stores) -> None:
    chat = stores.chat(stores.user("ann"))
    start = threading.Barrier(8)

    def attempt(n: int) -> str:
        start.wait(5)
        try:
            return str(stores.begin(chat, f"try {n}").id)
        except TurnInProgress as refusal:
            return f"refused, {refusal.turn_id} is running"

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(attempt, range(8)))
    let_in = [a for a in answers if not a.startswith("refused")]
    assert len(let_in) == 1
    assert answers.count(f"refused, {let_in[0]} is running") == 7


def test_a_key_makes_one_turn_however_often_it_is_sent(stores: Stores) -> None:
    chat = stores.chat(stores.user("ann"))
    first = stores.begin(chat, "hello", "key")
    assert stores.begin(chat, "hello", "key") == RepeatedMessage(first.id), "also while it runs"
    with pytest.raises(TurnInProgress):
        stores.begin(chat, "hello", "other key")
    settle(first)
    assert stores.begin(chat, "hello", "key") == RepeatedMessage(first.id)
    assert stores.held(chat) == NOTHING_HELD, "what is only told once more takes nothing"
    with pytest.raises(IdempotencyMismatch):
        stores.begin(chat, "something else", "key")
    assert stores.begin(chat, "hello", "other key").id != first.id


def test_a_turn_is_settled_once(stores: Stores) -> None:
    chat = stores.chat(stores.user("ann"))
    begun = stores.begin(chat, "hello")
    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(lambda n: settle(begun, f"{n}"), range(6)))
    assert sorted(won) == [False] * 5 + [True]
    assert len(read(stores, chat, lambda: stores.chats.transcript(chat)).messages) == 2


def test_a_turn_whose_worker_died_does_not_block_the_session(stores: Stores) -> None:
    chat = stores.chat(stores.user("ann"))
    dead = stores.begin(chat, "lost", lease=OVER)
    stores.turn(chat, "next")
    whole = read(stores, chat, lambda: stores.chats.transcript(chat))
    assert [(t.id == dead.id, t.status) for t in whole.turns] == [
        (True, "interrupted"),
        (False, "completed"),
    ]
    assert [m.content for m in whole.messages] == ["lost", "next", "the reply"]
    assert not settle(dead), "a dead turn must not come back"


def test_the_first_turns_of_a_new_organisation_do_not_wait_for_each_other_in_a_circle(stores: Stores) -> None:
    """Nobody has a row yet, so all of them make the same ones, at the same time.

    On PostgreSQL a row that one makes while it holds another must come in the order in which
    everybody takes them, or two wait for each other until the database ends one.
    """
    for n in range(4):
        users = [stores.user(f"user{n}{m}", f"tenant{n}") for m in range(3)]
        chats = [stores.chat(user) for user in users for _ in range(3)]
        start = threading.Barrier(len(chats))

        def first(chat: Scope, start: threading.Barrier = start) -> str:
            start.wait(10)
            return stores.turn(chat, "hello")

        with ThreadPoolExecutor(len(chats)) as pool:
            assert len(set(pool.map(first, chats))) == len(chats)
        assert stores.held(chats[0]) == NOTHING_HELD
        assert stores.used(chats[0]) == {"session": 7, "user": 27, "tenant": 81}


@pytest.mark.parametrize("other", ["delete", "begin"])
def test_a_turn_that_ends_while_it_is_given_up_is_given_back_once(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Its own end, and the deletion of its chat or the next message after its lease, at the same moment.

    The end has the turn and waits for the chat or the cells, the other has those and waits for the
    turn: unless one of them waits before it has anything. So the end is held up once it has the turn.
    """
    ann = stores.user("ann")
    chat, elsewhere = stores.chat(ann), stores.chat(ann)
    running = stores.begin(elsewhere, "stays")
    begun = stores.begin(chat, "hello", lease=OVER if other == "begin" else LEASE)
    ending, given_up, ending_thread = threading.Event(), threading.Event(), list[threading.Thread]()
    give_back = stores.guardrails.settle

    def hold_up(statement: str, parameters: Any) -> None:
        if statement.startswith("UPDATE turns") and not ending.is_set():
            ending_thread.append(threading.current_thread())
            ending.set()
            given_up.wait(1)

    def tell_when_given_back(*args: Any) -> Settled:
        settled = give_back(*args)
        if threading.current_thread() is not ending_thread[0]:
            given_up.set()
        return settled

    monkeypatch.setattr(stores.guardrails, "settle", tell_when_given_back)
    with statements_noted(hold_up, stores.db, after=True), ThreadPoolExecutor(2) as pool:
        end = pool.submit(settle, begun)
        assert ending.wait(10)
        if other == "delete":
            pool.submit(stores.delete_chat, chat).result(20)
        else:
            after = pool.submit(stores.begin, chat, "next").result(20)
        assert end.result(20), "it came first"
    if other == "begin":
        assert settle(after)
    held = stores.held(elsewhere)
    assert (held["user"], held["tenant"]) == ((1, 2_000), (1, 2_000))
    assert settle(running)
    assert stores.held(elsewhere) == NOTHING_HELD


def test_somebody_elses_chat_is_an_absent_one(stores: Stores) -> None:
    ann, bob = stores.user("ann"), stores.user("bob")
    chat = stores.chat(ann)
    turn = stores.turn(chat, "private")
    stores.notes.add(chat, "private note")
    other_tenant = UserScope(
        request_id="r", tenant_id=stores.user("eve", "other").tenant_id, user_id=ann.user_id
    )
    for stranger in (bob.within(chat.session_id), other_tenant.within(chat.session_id)):
        for attempt in (
            lambda s=stranger: read(stores, s, lambda: stores.chats.get(s)),
            lambda s=stranger: read(stores, s, lambda: stores.chats.transcript(s)),
            lambda s=stranger: stores.chats.rename(s, "mine now"),
            lambda s=stranger: stores.delete_chat(s),
            lambda s=stranger: stores.begin(s, "hi"),
            lambda s=stranger: stores.notes.add(s, "hi"),
        ):
            with pytest.raises(NotFound):
                attempt()
        assert not settle(Turn(stores.kit(), stranger, StartedTurn(turn, "hi", "", (), "", NOTHING)))
        assert read(stores, stranger, lambda s=stranger: stores.notes.all(s)) == []
        assert not stores.notes.remove(stranger, 1)
        assert read(stores, stranger, lambda s=stranger: stores.chats.page(s)) == ([], False)
        assert (
            read(stores, stranger, lambda s=stranger: stores.chats.search(s.within("another"), "private", 9))
            == []
        )
    assert read(stores, chat, lambda: stores.chats.get(chat)).title == "private"


def test_the_search_of_past_chats_finds_the_users_other_chats_only(stores: Stores) -> None:
    ann, bob = stores.user("ann"), stores.user("bob")
    past, now = stores.chat(ann), stores.chat(ann)
    stores.turn(past, "the blue door")
    stores.turn(now, "where was the blue door?")
    stores.turn(stores.chat(bob), "my blue door")
    found = read(stores, now, lambda: stores.chats.search(now, "BLUE door", 9))
    assert [(title, passage) for title, _, passage in found] == [("the blue door", "the blue door")]


def test_pages_of_chats_are_complete_and_newest_first(stores: Stores) -> None:
    ann = stores.user("ann")
    made = [stores.chat(ann).session_id for _ in range(7)]
    pages = [read(stores, ann, lambda p=p: stores.chats.page(ann, page=p, size=3)) for p in (1, 2, 3)]
    assert [more for _, more in pages] == [True, True, False]
    assert [chat.id for chats, _ in pages for chat in chats] == made[::-1]


def test_deleting_a_chat_deletes_all_that_is_in_it(stores: Stores) -> None:
    chat = stores.chat(stores.user("ann"))
    stores.turn(chat, "hello")
    stores.notes.add(chat, "a note")
    stores.delete_chat(chat)
    with stores.db.engine.connect() as raw:
        left = [
            raw.scalar(
                text(f"SELECT count(*) FROM {table} WHERE tenant_id = :t AND user_id = :u"),
                {"t": chat.tenant_id, "u": chat.user_id},
            )
            for table in ("messages", "turns", "notes", "sessions")
        ]
        cells = raw.scalars(text("SELECT scope FROM guardrail_cells ORDER BY scope"))
        assert list(cells) == ["tenant", "user"], "of the chat itself nothing is left"
    assert left == [0, 0, 0, 0]


def test_notes_added_at_once_get_numbers_of_their_own(stores: Stores) -> None:
    chat = stores.chat(stores.user("ann"))
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda n: stores.notes.add(chat, f"note {n}"), range(16)))
    assert sorted(numbers) == list(range(1, 17))


def test_two_threads_of_one_request_never_share_a_session(stores: Stores) -> None:
    scope = stores.user("ann")
    together = threading.Barrier(2)

    def session() -> int:
        with stores.binder.bound(scope), stores.db.reading() as db:
            together.wait(5)
            return id(db)

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(session), pool.submit(session)
    assert one.result() != two.result()


def test_the_scoped_session_is_removed_when_its_binding_ends(stores: Stores) -> None:
    scope = stores.user("ann")
    with stores.binder.bound(scope):
        with stores.db.reading() as db:
            db.execute(text("SELECT 1"))
        assert stores.db.open_readers() == 1
        assert stores.db.connections_in_use() == 1
    assert stores.db.open_readers() == 0
    assert stores.db.connections_in_use() == 0


def test_the_scoped_session_is_removed_even_if_another_cleanup_fails(stores: Stores) -> None:
    def fails() -> None:
        raise OSError("another clean-up")

    stores.binder.at_release(fails)
    scope = RequestScope(request_id="r")
    with pytest.raises(OSError), stores.binder.bound(scope), stores.db.reading() as db:
        db.execute(text("SELECT 1"))
    assert stores.db.open_readers() == 0


def test_nobody_holds_two_connections_at_once(stores: Stores) -> None:
    """Otherwise as many threads as the pool is large, each waiting for its second, would wait for ever."""
    with stores.binder.bound(stores.user("ann")):
        with stores.db.reading() as db:
            db.execute(text("SELECT 1"))
        with stores.db.writing() as db:
            db.execute(text("SELECT 1"))
            assert stores.db.connections_in_use() == 1
        with stores.db.reading() as db:
            db.execute(text("SELECT 1"))
        with stores.db.transaction():
            assert stores.db.connections_in_use() == 1


def test_a_writer_that_does_not_get_its_turn_is_told_and_the_next_one_does(
    tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(sqlite_template, tmp_path / "stores.sqlite3")
    stores = Stores(f"sqlite:///{tmp_path / 'stores.sqlite3'}")
    monkeypatch.setattr("agentapp.storage.db.QUEUE_WAIT_SECONDS", 0.1)
    with ThreadPoolExecutor(1) as pool, stores.db.writing():
        second = pool.submit(stores.accounts.sign_out, "nobody's token")
        assert isinstance(second.exception(), StorageUnavailable)
    stores.accounts.sign_out("nobody's token")
    stores.db.close()


def test_reading_without_a_scope_is_an_error(stores: Stores) -> None:
    with pytest.raises(NotBound), stores.db.reading():
        pass


def test_a_failed_write_changes_nothing(stores: Stores) -> None:
    chat = stores.chat(stores.user("ann"))
    retitle = text("UPDATE sessions SET title = 'x' WHERE tenant_id = :t AND user_id = :u")
    with pytest.raises(ZeroDivisionError), stores.db.writing() as db:
        _ = db.execute(retitle, {"t": chat.tenant_id, "u": chat.user_id}), 1 / 0
    assert read(stores, chat, lambda: stores.chats.get(chat)).title == "New chat"


def test_a_connection_is_not_used_by_a_forked_child(stores: Stores) -> None:
    """A pool filled before a fork must not be drawn from after it: two processes would share a socket."""
    scope = stores.user("ann")
    with stores.binder.bound(scope):
        stores.accounts.all()  # the pool is warm now
    told: multiprocessing.SimpleQueue[Any] = multiprocessing.get_context("fork").SimpleQueue()

    def child() -> None:
        with stores.binder.bound(scope), stores.db.reading() as db:
            record = db.connection().connection._connection_record  # type: ignore[attr-defined]
            told.put((record.info["pid"], os.getpid()))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(10)
    assert process.exitcode == 0
    opened_by, used_by = told.get()
    assert opened_by == used_by != os.getpid()
    with stores.binder.bound(scope):
        assert stores.accounts.all()[0].name == "ann", "the parent's own connection must still work"


def test_a_database_that_is_away_is_storage_unavailable(tmp_path: Path) -> None:
    (tmp_path / "garbage.sqlite3").write_bytes(b"not a database at all" * 500)
    for url in (
        f"sqlite:///{tmp_path}/nowhere/x.sqlite3",
        f"sqlite:///{tmp_path}/garbage.sqlite3",
        "postgresql+psycopg://nobody@127.0.0.1:1/nothing",
    ):
        stores = Stores(url)
        scope = UserScope(request_id="r", tenant_id="t", user_id="u")
        with stores.binder.bound(scope), pytest.raises(StorageUnavailable):
            stores.chats.page(scope)
        with pytest.raises(StorageUnavailable):
            stores.chats.create(scope)
        stores.db.close()


def test_times_come_back_as_utc(stores: Stores) -> None:
    chat = stores.chat(stores.user("ann"))
    created = read(stores, chat, lambda: stores.chats.get(chat)).created_at
    assert created.utcoffset() == timedelta(0)


def test_a_long_first_message_makes_a_short_title() -> None:
    assert title_of("two\n lines  ") == "two lines"
    assert len(title_of("word " * 100)) <= 60
    assert title_of("word " * 100).endswith("…")


def test_few_write_at_once_and_the_others_hold_nothing_meanwhile(stores: Stores) -> None:
    """The row of a tenant is locked by all its turns: most who want it must not wait in the database."""
    most = 1 if stores.db.engine.dialect.name == "sqlite" else POSTGRES_WRITERS
    all_are_in, leave, inside = threading.Semaphore(0), threading.Event(), []

    def write() -> None:
        with stores.db.transaction():
            inside.append(threading.get_ident())
            all_are_in.release()
            assert leave.wait(10)

    with ThreadPoolExecutor(12) as pool:
        writing = [pool.submit(write) for _ in range(12)]
        for _ in range(most):
            assert all_are_in.acquire(timeout=10)
        one_more = all_are_in.acquire(timeout=0.2)
        connections = stores.db.connections_in_use()
        leave.set()
        for each in writing:
            each.result(10)
    assert (one_more, connections) == (False, most)
    assert len(inside) == 12


def test_a_tenant_that_is_stuck_leaves_a_writer_for_the_others(stores: Stores) -> None:
    """As behind a row of its own that somebody has locked."""
    if stores.db.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer, who waits for no row")
    inside, leave = threading.Semaphore(0), threading.Event()

    def be_stuck() -> None:
        with stores.db.transaction("tenant"):
            inside.release()
            assert leave.wait(10)

    with ThreadPoolExecutor(2 * POSTGRES_WRITERS) as pool:
        stuck = [pool.submit(be_stuck) for _ in range(2 * POSTGRES_WRITERS)]
        try:
            for _ in range(POSTGRES_WRITERS - 1):
                assert inside.acquire(timeout=10)
            with stores.db.transaction("another"), stores.db.looking():
                assert not inside.acquire(timeout=0)
        finally:
            leave.set()
        for each in stuck:
            each.result(10)
