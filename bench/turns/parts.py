"""Where the processor's time of one JSON turn goes, in microseconds, and how many statements it takes.

In one process, with the demo model and SQLite: what a request costs without a server and a network.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from flask import Flask

from agentapp import config
from agentapp.app import create_app
from agentapp.storage.accounts import Accounts
from agentapp.turns.turn import Turn
from bench.turns.people import add_people
from bench.turns.plans import Person
from bench.turns.systems import RATES_OFF

WARM_UP_TURNS = 50
TURNS = 300
SHOWN_CHARS = 100
UNCOUNTED = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA")
# What is timed, and where it happens. What one of them calls of the others is not counted for it again.
PARTS: dict[str, tuple[Any, str]] = {
    "login look-up": (Accounts, "user_of"),
    "begin": (Turn, "begin"),
    "play": (Turn, "__next__"),
    "settle": (Turn, "_settle"),
}
WEB, REST = "web (all else of the request)", "other threads (model, heartbeat, thread starts)"


class Clock:
    """The time that threads spend in named parts, each without the parts inside of it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._here = threading.local()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        stack: list[str] = self._here.__dict__.setdefault("stack", [])
        self._charge(stack)
        stack.append(name)
        try:
            yield
        finally:
            self._charge(stack)
            stack.pop()

    def _charge(self, stack: list[str]) -> None:
        now = time.thread_time()
        if stack:
            self.seconds[stack[-1]] += now - self._here.since
        self._here.since = now


def report(home: Path) -> str:
    (person,) = add_people(home / "instance", count=1)
    seconds, whole = timed_turns(home, person)
    statements = counted_statements(home, person)
    lines = [f"PARTS OF A JSON TURN (demo model, SQLite, in process, {TURNS} turns): CPU in microseconds"]
    parts = {**{name: seconds[name] for name in (WEB, *PARTS)}, REST: whole - sum(seconds.values())}
    lines += [f"{name:52}{part / TURNS * 1e6:>10,.0f}" for name, part in parts.items()]
    lines += [f"{'together':52}{whole / TURNS * 1e6:>10,.0f}", ""]
    lines.append(f"SQL statements a turn on SQLite, without BEGIN and COMMIT: {sum(statements.values()):.1f}")
    lines += [f"{count:5.1f}  {statement}" for statement, count in statements.items()]
    return "\n".join(lines)


def timed_turns(home: Path, person: Person) -> tuple[Counter[str], float]:
    """The seconds of the parts, and of the whole process."""
    clock = Clock()
    with ExitStack() as held:
        for name, (owner, method) in PARTS.items():
            held.enter_context(mock.patch.object(owner, method, timed(clock, name, owner.__dict__[method])))
        app = held.enter_context(running_app(home))
        app.wsgi_app = timed(clock, WEB, app.wsgi_app)  # type: ignore[method-assign]
        send_all(app, person, WARM_UP_TURNS)
        clock.seconds.clear()
        began = time.process_time()
        send_all(app, person, TURNS)
        return clock.seconds, time.process_time() - began


def timed(clock: Clock, name: str, function: Any) -> Any:
    if isinstance(function, classmethod):
        return classmethod(timed(clock, name, function.__func__))

    def call(*args: Any, **kwargs: Any) -> Any:
        with clock.part(name):
            return function(*args, **kwargs)

    return call


def counted_statements(home: Path, person: Person) -> Counter[str]:
    """How often the driver is called in a turn with each; not by the heartbeat. `executemany` is one call."""
    found: Counter[str] = Counter()

    class CountingCursor(sqlite3.Cursor):
        def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
            note(statement)
            return super().execute(statement, *args)

        def executemany(self, statement: str, *args: Any) -> sqlite3.Cursor:
            note(statement)
            return super().executemany(statement, *args)

    class CountingConnection(sqlite3.Connection):
        def cursor(self, *_: Any) -> CountingCursor:
            return super().cursor(CountingCursor)

        def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
            return self.cursor().execute(statement, *args)

    def note(statement: str) -> None:
        if "heartbeat" not in threading.current_thread().name and not statement.startswith(UNCOUNTED):
            found[" ".join(statement.split())[:SHOWN_CHARS]] += 1

    connect = functools.partial(sqlite3.dbapi2.connect, factory=CountingConnection)
    with mock.patch("sqlite3.dbapi2.connect", connect), running_app(home) as app:
        send_all(app, person, WARM_UP_TURNS)
        found.clear()
        send_all(app, person, WARM_UP_TURNS)
        return Counter({name: count / WARM_UP_TURNS for name, count in found.items()})


@contextmanager
def running_app(home: Path) -> Iterator[Flask]:
    chosen = {"AGENTAPP_INSTANCE": str(home / "instance"), "AGENTAPP_DEMO_DELAY": "0", **RATES_OFF}
    app = create_app(config.load(chosen, bind="127.0.0.1:8000"))
    parts = app.extensions["agentapp"]
    parts.start()
    try:
        yield app
    finally:
        parts.close()


def send_all(app: Flask, person: Person, turns: int) -> None:
    """Each to the next of the person's chats."""
    client = app.test_client(use_cookies=False)
    headers = {"Cookie": person.cookie, "Accept": "application/json"}
    for n in range(turns):
        form = {"csrf_token": person.csrf, "message": "hello"}
        answer = client.post(person.paths[n % len(person.paths)], data=form, headers=headers)
        assert answer.status_code == 200, answer.text
