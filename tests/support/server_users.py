"""Users of the real server who send at once, a model that waits for them, and the rows in the database."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from argon2 import PasswordHasher
from sqlalchemy import text

from agentapp.isolation import ThreadBinder
from agentapp.storage.accounts import Accounts
from agentapp.storage.db import Database
from agentapp.storage.engines import make_engine
from agentapp.storage.values import Role
from tests.support.http_client import Answer, Visitor
from tests.support.messages_api import MessagesApi, Responder, Script, respond_as_told
from tests.support.server import Server, server
from tests.support.users import PASSWORD

T = TypeVar("T")

TIMEOUT_SECONDS = 120.0
OFF = {
    f"AGENTAPP_{name}": "off"
    for name in ("RATE_SESSION", "RATE_USER", "RATE_TENANT", "RATE_CHATS", "RATE_LOGIN", "CONCURRENT_USER")
}


def add_people(url: str, names: Sequence[str], tenant: str = "crowd", role: Role = "member") -> None:
    """Straight into the database, hashed with the smallest parameters: sign-in is not what is tested here."""
    db = Database(url, ThreadBinder())
    accounts = Accounts(db)
    accounts._hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    for name in names:
        accounts.add(name, PASSWORD, tenant=tenant, role=role)
    db.engine.dispose()


@contextmanager
def served(
    directory: Path,
    url: str,
    api: MessagesApi | None = None,
    *,
    workers: int = 2,
    threads: int = 128,
    port: int | None = None,
    command: Sequence[str | Path] | None = None,
    gunicorn: str = "",
    release: Path | None = None,
    **settings: object,
) -> Iterator[Server]:
    """The server on this database, asking this model (or the demo), with these settings. It may be that of
    another ``release``, whose files are there.
    """
    env = {"AGENTAPP_DATABASE_URL": url, "AGENTAPP_DEMO_DELAY": "0"}
    if api is not None:
        env |= {"ANTHROPIC_API_KEY": "sk-test-key", "ANTHROPIC_BASE_URL": api.url}
    env |= {f"AGENTAPP_{name.upper()}": str(value) for name, value in settings.items()}
    if gunicorn:
        env["GUNICORN_CMD_ARGS"] = gunicorn
    if release is not None:
        env["PYTHONPATH"] = str(release)
    with server(
        directory, env=OFF | env, workers=workers, threads=threads, port=port, command=command
    ) as running:
        wait_for(lambda: running.process.poll() is not None or len(running.children()) == workers)
        assert running.process.poll() is None, running.output()
        yield running


@dataclass(frozen=True)
class Seat:
    """One chat of one person, at a browser of its own."""

    visitor: Visitor
    chat: str

    def send(self, message: str, accept: str = "application/json") -> Answer:
        return self.visitor.send(self.chat, message, accept)

    def statuses(self) -> list[str]:
        """How each of the chat's turns ended."""
        answer = self.visitor.get(f"/chat/{self.chat}/export.json")
        assert answer.status == 200, answer.text
        return [turn["status"] for turn in json.loads(answer.body)["turns"]]


def seats(url: str, names: Sequence[str], chats_each: int = 1) -> list[Seat]:
    """Everybody signed in, with so many chats; all of one person's come one after the other."""

    def sit(name: str) -> list[Seat]:
        first = Visitor(url, timeout=TIMEOUT_SECONDS)
        first.sign_in(name, PASSWORD)
        chats = [first.new_chat() for _ in range(chats_each)]
        return [Seat(Visitor(url, TIMEOUT_SECONDS, dict(first.cookies), first.csrf), chat) for chat in chats]

    with ThreadPoolExecutor(8) as pool:
        return [seat for found in pool.map(sit, names) for seat in found]


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """All of them begin together."""
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        ready.wait(TIMEOUT_SECONDS)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


@dataclass
class Rush:
    """What came of many sends at once. ``answered`` is there when the model was let go on."""

    reached: int = 0
    refused: list[Answer] = field(default_factory=list)
    answered: list[Answer] = field(default_factory=list)


@contextmanager
def rush(
    api: MessagesApi, sends: Sequence[Callable[[], Answer]], then: Responder | None = None
) -> Iterator[Rush]:
    """Everybody sends at once, and the model answers nobody before each of them either waits for it or was
    turned away. So how many are let in depends on nobody's speed. The body runs while they wait; after
    it the model answers as ``then`` says.
    """
    let_go = threading.Event()
    told = then or obey_the_last

    def held(request: Any) -> Script:
        assert let_go.wait(TIMEOUT_SECONDS)
        return told(request)

    assert api.wait_until(lambda api: api.in_progress == 0)  # it may not know yet that it has answered
    api.respond_with(held)
    found = Rush()
    with ThreadPoolExecutor(len(sends)) as pool:
        try:
            sent: list[Future[Answer]] = [pool.submit(send) for send in sends]
            wait_for(lambda: api.in_progress + sum(one.done() for one in sent) >= len(sent))
            waiting = [one for one in sent if not one.done()]
            found.reached = api.in_progress
            found.refused = [one.result() for one in sent if one not in waiting]
            yield found
        finally:
            let_go.set()
            api.respond_with(told)
        found.answered = [one.result() for one in waiting]


def obey_the_last(request: Any) -> Script:
    """As told by the last text alone: after a failed turn, the model sees its message once more."""
    last = request["messages"][-1]
    blocks = last["content"]
    if isinstance(blocks, str) or any(block["type"] == "tool_result" for block in blocks):
        return respond_as_told(request)
    return respond_as_told({**request, "messages": [{**last, "content": blocks[-1:]}]})


def refusal(answer: Answer, status: int, code: str, scope: str | None) -> dict[str, Any]:
    """The body of a refusal that is what it should be, and says when to come back."""
    body: dict[str, Any] = json.loads(answer.body)
    assert (answer.status, body["code"], body["scope"]) == (status, code, scope), answer.text
    assert answer.headers["Retry-After"] == str(body["retry_after"])
    assert body["retry_after"] >= 1
    return body


def cells(url: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Every guardrail row by scope and id, with its mark."""
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT scope, id, state, mark FROM guardrail_cells")).all()
    finally:
        engine.dispose()
    return {(scope, id): {**json.loads(state), "mark": mark} for scope, id, state, mark in rows}


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    """What a query finds, asked past the engine, for it may look at everybody's rows."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=TIMEOUT_SECONDS)) as connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def breakers(url: str, scope: str) -> list[dict[str, Any]]:
    """The breakers of a scope that are open, half-open included."""
    found = [cell.get("breaker", {}) for (of, _), cell in cells(url).items() if of == scope]
    return [breaker for breaker in found if "opened" in breaker]


def reserved(found: Mapping[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """What running turns hold of the cells: nothing, if none runs."""
    held = {
        key: (cell.get("room"), cell.get("budget", {}).get("holds"), cell.get("outage", {}).get("running"))
        for key, cell in found.items()
    }
    return {key: some for key, some in held.items() if any(some)}


def let_cool_down(url: str, scope: str) -> None:
    """The one open breaker of that scope, as it will be when its cool-down is over: put back in the row."""
    ((key, cell),) = [(k, c) for k, c in cells(url).items() if k[0] == scope and c["mark"] == "open"]
    del cell["mark"]
    cell["breaker"]["opened"] -= cell["breaker"]["cooldown"] + 1
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            row = {"state": json.dumps(cell), "scope": key[0], "id": key[1]}
            change = "UPDATE guardrail_cells SET state = :state WHERE scope = :scope AND id = :id"
            connection.execute(text(change), row)
    finally:
        engine.dispose()


def wait_for_half_open(url: str, scope: str) -> None:
    """Until the one open breaker of that scope has cooled down."""
    (breaker,) = breakers(url, scope)
    time.sleep(max(0.0, breaker["opened"] + breaker["cooldown"] - time.time()) + 0.02)


def wait_for(claim: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
