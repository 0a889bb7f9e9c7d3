"""Many people at once on the real server: every byte anybody gets is searched for anybody else's marks."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from agentapp.isolation import ThreadBinder
from agentapp.server.lanes import HEALTH_PATHS, PAGE_THREADS, STRANGER_THREADS
from agentapp.storage import migrate
from agentapp.storage.accounts import Accounts
from agentapp.storage.db import Database
from tests.support.http_client import Answer, Visitor
from tests.support.messages_api import MessagesApi
from tests.support.postgres import migrated_postgres_url
from tests.support.rounds import ROUNDS
from tests.support.server import Server, server
from tests.support.server_users import wait_for

USERS, SESSIONS = (20, 40) if ROUNDS == 1 else (50, 100)
TURNS = 3
PASSWORD = "a long enough password"
KINDS = ("text/event-stream", "application/json", "text/html")
MARK = re.compile(rb"mark-[0-9a-f]{16}")

# Everybody here comes from one address and at once. What the limits do about that is tested elsewhere;
# here nobody is to be turned away, so that all of them are really under way together.
NO_LIMITS = {
    "AGENTAPP_THREADS_RESERVED": "0",
    "AGENTAPP_RATE_CHATS": "off",
    "AGENTAPP_RATE_LOGIN": "off",
    "AGENTAPP_RATE_SESSION": "off",
    "AGENTAPP_RATE_USER": "off",
    "AGENTAPP_RATE_TENANT": "off",
}

pytestmark = pytest.mark.timeout(280)


def add_users(url: str, names: list[str]) -> None:
    """Straight into the database, hashed with the smallest parameters: sign-in is not what is tested here."""
    migrate.upgrade(url)
    db = Database(url, ThreadBinder())
    accounts = Accounts(db)
    accounts._hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    for n, name in enumerate(names):
        accounts.add(name, PASSWORD, tenant=f"tenant{n % 3}")
    db.engine.dispose()


@dataclass
class Talk:
    """One session of one user, with a mark that nobody else has ever sent."""

    user: str
    mark: str
    visitor: Visitor
    chat: str = ""

    def run(self) -> list[tuple[str, Answer]]:
        """Every answer, with how far it may look: at this session only, or at all of the user's."""
        seen: list[tuple[str, Answer]] = []
        self.visitor.sign_in(self.user, PASSWORD)
        self.chat = self.visitor.new_chat()
        for n in range(TURNS):
            text = f"hello {n} {self.mark}" if n < TURNS - 1 else f"recap {self.mark}"
            answer = self.visitor.send(self.chat, text, KINDS[n % 3])
            assert answer.status in (200, 303), answer.text
            seen.append(("session", answer))
            wait_for(lambda: not self._is_answering(seen))  # a plain form waits only some seconds for it
        seen.append(("user", self.visitor.get(f"/chat/{self.chat}")))
        seen.append(("user", self.visitor.get("/chat")))
        seen.append(("session", self.visitor.get(f"/chat/{self.chat}/export.json")))
        seen.append(("session", self.visitor.get(f"/chat/{self.chat}/export.md")))
        return seen

    def _is_answering(self, seen: list[tuple[str, Answer]]) -> bool:
        seen.append(("session", self.visitor.get(f"/chat/{self.chat}/export.json")))
        return any(turn["status"] == "running" for turn in json.loads(seen[-1][1].body)["turns"])


def talk_all(running: Server) -> None:
    names = [f"user{n}" for n in range(USERS)]
    talks = [
        Talk(names[n % USERS], f"mark-{secrets.token_hex(8)}", Visitor(running.url, timeout=200))
        for n in range(SESSIONS)
    ]
    with ThreadPoolExecutor(SESSIONS) as pool:
        answers = list(pool.map(Talk.run, talks))
    of_user = {name: {t.mark.encode() for t in talks if t.user == name} for name in names}
    for talk, seen in zip(talks, answers, strict=True):
        for reach, answer in seen:
            allowed = {talk.mark.encode()} if reach == "session" else of_user[talk.user]
            found = set(MARK.findall(answer.everything))
            assert found <= allowed, f"{talk.user} saw {found - allowed} in {answer.text[:2000]}"
        export = json.loads(seen[-2][1].body)
        ends = [turn["status"] for turn in export["turns"]]
        assert ends == ["completed"] * TURNS, running.output()[-3000:]
        messages = export["messages"]
        assert [m["seq"] for m in messages] == list(range(1, 2 * TURNS + 1))
        assert all(talk.mark in m["content"] for m in messages), "an answer does not belong to its question"
    assert "isolation violation" not in running.output()
    assert "Traceback" not in running.output(), running.output()[-3000:]


@pytest.mark.parametrize(("workers", "threads"), [(2, 64), (1, 1)])
def test_many_sessions_of_half_as_many_users_never_see_each_other(
    tmp_path: Path, workers: int, threads: int
) -> None:
    add_users(f"sqlite:///{tmp_path}/instance.sqlite3", [f"user{n}" for n in range(USERS)])
    env = {"AGENTAPP_DATABASE_URL": f"sqlite:///{tmp_path}/instance.sqlite3", "AGENTAPP_DEMO_DELAY": "0"}
    with server(tmp_path, workers=workers, threads=threads, env={**NO_LIMITS, **env}) as running:
        talk_all(running)


def test_many_sessions_through_the_sdk_on_postgresql_never_see_each_other(tmp_path: Path) -> None:
    with migrated_postgres_url() as url, MessagesApi() as api:
        add_users(url, [f"user{n}" for n in range(USERS)])
        env = {
            "AGENTAPP_DATABASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-test-key",
            "ANTHROPIC_BASE_URL": api.url,
            **NO_LIMITS,
        }
        with server(tmp_path, workers=2, threads=64, env=env) as running:
            talk_all(running)
            assert "sk-test-key" not in running.output()


def test_one_worker_and_one_thread_after_a_stream_a_stranger_sees_nobody(tmp_path: Path) -> None:
    add_users(f"sqlite:///{tmp_path}/instance.sqlite3", ["ann"])
    env = {"AGENTAPP_DATABASE_URL": f"sqlite:///{tmp_path}/instance.sqlite3", "AGENTAPP_DEMO_DELAY": "0"}
    with server(tmp_path, workers=1, threads=1, env=env) as running:
        ann = Visitor(running.url)
        ann.sign_in("ann", PASSWORD)
        chat = ann.new_chat()
        for _ in range(3):
            answer = ann.send(chat, "my secret is mark-0123456789abcdef", "text/event-stream")
            assert b"mark-0123456789abcdef" in answer.body
            for path in (
                "/",
                "/login",
                "/chat",
                f"/chat/{chat}",
                f"/chat/{chat}/export.json",
                "/nowhere",
                "/livez",
            ):
                stranger = Visitor(running.url).get(path)
                assert stranger.status in (200, 303, 404)
                assert b"mark-" not in stranger.everything
                assert b"ann" not in re.sub(rb"cannot|[a-z]*channel", b"", stranger.body)


@pytest.mark.parametrize(
    ("trouble", "status"),
    [
        ("[[status:500]]", 502),
        ("[[status:529]]", 502),
        ("[[status:401]]", 502),
        ("[[cut:900]]", 502),
        ("[[end-early]]", 502),
        ("[[garbage]]", 502),
        ("[[error-event:overloaded_error]]", 502),
        ("[[hang:30]]", 504),
        ('[[tool:unheard_of {"a": 1}]]', 200),
    ],
)
def test_after_any_fault_of_the_model_the_only_thread_serves_the_next(
    tmp_path: Path, faulty_server: Server, trouble: str, status: int
) -> None:
    """One worker, one thread: whatever is left behind would meet the next request."""
    ann, bob = Visitor(faulty_server.url), Visitor(faulty_server.url)
    ann.sign_in("ann", PASSWORD)
    bob.sign_in("bob", PASSWORD)
    ours, theirs = ann.new_chat(), bob.new_chat()
    answer = ann.send(ours, trouble)
    assert answer.status == status, answer.text
    if status != 200:
        assert set(json.loads(answer.body)) >= {"code", "title", "detail", "scope", "retry_after", "turn_id"}
    for visitor, chat in ((bob, theirs), (ann, ours)):
        after = visitor.send(chat, "hello again", "text/event-stream")
        assert '"status": "completed"' in after.text
    assert "isolation violation" not in faulty_server.output()


@pytest.fixture(scope="module")
def faulty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("faulty")
    url = f"sqlite:///{directory}/instance.sqlite3"
    add_users(url, ["ann", "bob"])
    with MessagesApi() as api:
        env = {
            "AGENTAPP_DATABASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-test-key",
            "ANTHROPIC_BASE_URL": api.url,
            "AGENTAPP_FIRST_TOKEN_DEADLINE": "4",  # longer than the pauses between retries
            "AGENTAPP_GAP_DEADLINE": "1.5",
            **NO_LIMITS,
        }
        with server(directory, workers=1, threads=1, env=env) as running:
            yield running


def test_a_server_is_as_small_after_many_turns_as_before(tmp_path: Path) -> None:
    """Threads and file descriptors of the worker itself, from outside."""
    add_users(f"sqlite:///{tmp_path}/instance.sqlite3", ["ann"])
    env = {"AGENTAPP_DATABASE_URL": f"sqlite:///{tmp_path}/instance.sqlite3", "AGENTAPP_DEMO_DELAY": "0"}
    with server(tmp_path, workers=1, threads=4, env={**NO_LIMITS, **env}) as running:
        (worker,) = running.children()
        ann = Visitor(running.url)
        ann.sign_in("ann", PASSWORD)
        chat = ann.new_chat()

        def turns(count: int) -> None:
            for n in range(count):
                message = ("what is 2*3?", "/fail later", "hello", "/fail")[n % 4]
                answer = ann.send(chat, message, KINDS[n % 2])
                assert answer.status in (200, 502), f"this was no turn: {answer.text}"

        turns(20)
        before = open_files(worker)
        turns(80 * ROUNDS)
        assert open_files(worker) <= before + 4
        lanes = 4 + PAGE_THREADS + STRANGER_THREADS + len(HEALTH_PATHS)
        assert len(os.listdir(f"/proc/{worker}/task")) <= lanes + 2, "more threads than the lanes have"


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
