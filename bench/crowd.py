"""What the trouble of some does to the others: the same crowd twice, without and with the trouble.

    python bench/crowd.py hanging [--sessions 512] [--seconds 60] [--threads 512]
    python bench/crowd.py failing [--sessions 100] [--seconds 30]

A real server with two workers, the real SDK, a local server that speaks the Messages API, and people
who each send a message every few seconds. With ``hanging`` a quarter of them ask what the model is
silent about for a minute; with ``failing`` a tenth of them get nothing but errors. Both runs are made
on the same machine right after each other; what counts is the ratio of the others' times. All the
while somebody asks for /livez, signs in (with the real, costly password hash) and opens a chat.

It needs some thousands of open files: see ``ulimit -n``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent))

from agentapp.isolation import ThreadBinder
from agentapp.storage.accounts import Accounts
from agentapp.storage.db import Database
from tests.server.test_load import PASSWORD, add_users
from tests.support.server import SCRIPTS, free_port, server

PACE = 12.0  # seconds between the messages of one person
ROOT = Path(__file__).parent.parent
SERVE = (SCRIPTS / "agentapp", "serve")


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: str


@dataclass
class Seen:
    """Times by what was asked for, and everything that was not as it should be."""

    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[str] = field(default_factory=Counter)
    memory: int = 0


@dataclass
class Person:
    url: str
    name: str
    message: str
    cookies: dict[str, str] = field(default_factory=dict)
    csrf: str = ""
    chat: str = ""

    async def ask(self, method: str, path: str, accept: str = "text/html", **data: str) -> Reply:
        where = urlsplit(self.url)
        body = urlencode({"csrf_token": self.csrf, **data}) if method == "POST" else ""
        head = [
            f"{method} {path} HTTP/1.1",
            f"Host: {where.netloc}",
            f"Accept: {accept}",
            f"Cookie: {'; '.join(f'{k}={v}' for k, v in self.cookies.items())}",
            "Content-Type: application/x-www-form-urlencoded",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(("\r\n".join(head) + "\r\n\r\n" + body).encode())
            raw = (await reader.read()).decode()
        finally:
            writer.close()
        top, _, text = raw.partition("\r\n\r\n")
        lines = top.split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
        if "set-cookie" in headers:
            name, _, value = headers["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        return Reply(int(lines[0].split()[1]), headers, text)

    async def sign_in(self) -> None:
        self._read_token(await self.ask("GET", "/login"))
        answer = await self.ask("POST", "/login", username=self.name, password=PASSWORD)
        assert answer.status == 303, answer
        self._read_token(await self.ask("GET", "/chat"))

    async def open_chat(self) -> None:
        self.chat = (await self.ask("POST", "/chat")).headers["location"].rsplit("/", 1)[1]

    async def send(self) -> Reply:
        path = f"/chat/{self.chat}/messages"
        return await self.ask("POST", path, "application/json", message=self.message)

    def _read_token(self, page: Reply) -> None:
        found = re.search(r'<meta name="csrf-token" content="([^"]+)"', page.body)
        assert found, page
        self.csrf = found[1]


async def talk(person: Person, seen: Seen, kind: str, ends: float, pace: float) -> None:
    """A message every so often until the time is up. The first comes at a random moment."""
    await asyncio.sleep(random.random() * pace)
    while time.monotonic() < ends:
        began = time.monotonic()
        answer = await person.send()
        took = time.monotonic() - began
        seen.statuses[f"{kind} {answer.status}"] += 1
        if answer.status == 200 or kind == "failing":
            seen.times[kind].append(took)
        elif seen.statuses[f"{kind} {answer.status}"] <= 3:
            print("   unexpected:", kind, answer.status, answer.body[:200])
        await asyncio.sleep(max(0.0, pace - took) * (0.5 + random.random()))


async def look_around(url: str, seen: Seen, ends: float) -> None:
    """Somebody who only reads: health, sign-in, the chat page."""

    async def timed(what: str, method: str, path: str, **data: str) -> Reply:
        began = time.monotonic()
        answer = await visitor.ask(method, path, **data)
        seen.times[what].append(time.monotonic() - began)
        seen.statuses[f"{what} {answer.status}"] += 1
        return answer

    while time.monotonic() < ends:
        visitor = Person(url, "visitor", "")
        await timed("livez", "GET", "/livez")
        visitor._read_token(await visitor.ask("GET", "/login"))
        await timed("sign-in", "POST", "/login", username="visitor", password=PASSWORD)
        visitor._read_token(await visitor.ask("GET", "/chat"))
        await visitor.open_chat()
        await timed("chat page", "GET", f"/chat/{visitor.chat}")
        await asyncio.sleep(0.3)


async def crowd(url: str, trouble: str, sessions: int, seconds: float, with_trouble: bool) -> Seen:
    troubled = sessions // (4 if trouble == "hanging" else 10)
    bad = {"hanging": "[[hang:60]]", "failing": "[[status:400]]"}[trouble]
    people = [Person(url, f"user{n}", "Tell me something. [[slow:0.1]]") for n in range(sessions - troubled)]
    others = [Person(url, f"user{n}", bad) for n in range(sessions - troubled, sessions)]
    gate = asyncio.Semaphore(16)

    async def arrive(person: Person) -> None:
        async with gate:
            await person.sign_in()
            await person.open_chat()

    await asyncio.gather(*map(arrive, people + others))
    seen, ends = Seen(), time.monotonic() + seconds
    jobs = [talk(person, seen, "good", ends, PACE) for person in people]
    if with_trouble:
        jobs += [talk(person, seen, trouble, ends, PACE) for person in others]
    await asyncio.gather(look_around(url, seen, ends), *jobs)
    return seen


@contextmanager
def model() -> Iterator[str]:
    """The Messages API in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "tests.support.messages_api", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def one_run(trouble: str, options: argparse.Namespace, with_trouble: bool) -> Seen:
    with tempfile.TemporaryDirectory() as home, model() as api:
        url = f"sqlite:///{home}/crowd.sqlite3"
        add_users(url, [f"user{n}" for n in range(options.sessions)])
        db = Database(url, ThreadBinder())
        Accounts(db).add("visitor", PASSWORD)
        db.engine.dispose()
        env = {
            "AGENTAPP_DATABASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-test",
            "ANTHROPIC_BASE_URL": api,
            "AGENTAPP_FIRST_TOKEN_DEADLINE": "90",
            "AGENTAPP_RATE_SESSION": "off",
            "AGENTAPP_RATE_USER": "off",
            "AGENTAPP_RATE_TENANT": "off",
        }
        with server(Path(home), command=SERVE, env=env, workers=2, threads=options.threads) as running:
            seen = asyncio.run(crowd(running.url, trouble, options.sessions, options.seconds, with_trouble))
            seen.memory = sum(rss(pid) for pid in running.children())
            return seen


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def at(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] if times else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trouble", choices=("hanging", "failing"))
    parser.add_argument("--sessions", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=512)
    options = parser.parse_args()
    runs = {name: one_run(options.trouble, options, name != "clean") for name in ("clean", options.trouble)}
    print(f"{options.sessions} sessions, 2 workers x {options.threads} threads, {options.seconds:.0f} s each")
    print(f"{'':12}{'clean p50':>12}{'p99':>10}{options.trouble + ' p50':>15}{'p99':>10}{'p99 ratio':>11}")
    clean, bad = runs["clean"].times, runs[options.trouble].times
    for what in sorted(set(clean) | set(bad)):
        figures = [at(times.get(what, []), share) * 1000 for times in (clean, bad) for share in (0.5, 0.99)]
        shown = "{:>10.0f}ms{:>8.0f}ms{:>13.0f}ms{:>8.0f}ms".format(*figures)
        print(f"{what:12}{shown}{figures[3] / figures[1]:>10.2f}x")
    for name, seen in runs.items():
        print(f"{name}: {dict(sorted(seen.statuses.items()))}, {seen.memory / 2**20:.0f} MiB in both workers")


if __name__ == "__main__":
    main()
