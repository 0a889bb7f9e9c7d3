"""The people who send messages, all in one cheap process of its own.

It gets a `Plan` and prints what happened, both as JSON. It waits until the server answers for the first time
and goes on at once with the first phase, so that the server is really cold then.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlencode

from bench.turns.exchange import Answer, Connection, connected
from bench.turns.processes import allow_open_files, cpu_seconds, descendants, of_group

START_SECONDS = 60.0
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Person:
    """``paths`` are where this one's messages go, one after the other and from the beginning again."""

    cookie: str
    csrf: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """``burst``: everybody sends one message, all begun at once, or within ``spread`` seconds.
    ``loop``: everybody sends the next message when the last one is answered, for so many seconds.
    With ``comes_back``, who is refused with 503 sends again when Retry-After says so.
    """

    kind: str
    message: str
    reply: str
    people: int
    accept: str = "application/json"
    seconds: float = 0.0
    spread: float = 0.0
    comes_back: bool = False
    timeout: float = 90.0
    pause: float = 0.0  # before it


@dataclass(frozen=True)
class Plan:
    port: int
    group: int  # the server's process group
    database_pid: int  # 0 if it is a part of the server
    ready_path: str
    people: list[Person]
    phases: list[Phase]


@dataclass
class Sent:
    """One try. ``code`` is empty if all of the answer came. ``at`` is when it began, in the phase."""

    person: int
    at: float
    status: int
    code: str
    first: float | None
    took: float


@dataclass
class Outcome:
    """What happened in a phase. ``began`` and ``ended`` are on the machine's monotonic clock."""

    began: float = 0.0
    ended: float = 0.0
    cpu: float = 0.0  # seconds, of the server
    database_cpu: float = 0.0
    sent: list[Sent] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def whole(self) -> list[Sent]:
        return [each for each in self.sent if not each.code]


class Crowd:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._connections: list[Connection | None] = [None] * len(plan.people)
        self._turns = [0] * len(plan.people)

    async def wait_until_up(self) -> float:
        """When the first answer came."""
        began = time.monotonic()
        request = f"GET {self._plan.ready_path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        while time.monotonic() < began + START_SECONDS:
            try:
                connection = await connected(self._plan.port)
                if (await connection.ask(request.encode(), 5)).status == 200:
                    return time.monotonic()
            except OSError:
                pass
            await asyncio.sleep(POLL_SECONDS)
        raise SystemExit("the server did not answer")

    async def play(self, phase: Phase) -> Outcome:
        self._hang_up()
        await asyncio.sleep(phase.pause)
        cpu, database_cpu = self._cpu()
        outcome = Outcome(began=time.monotonic())
        person = self._send_repeatedly if phase.kind == "loop" else self._send_once
        await asyncio.gather(*(person(n, phase, outcome) for n in range(phase.people)))
        outcome.ended = time.monotonic()
        cpu_after, database_after = self._cpu()
        outcome.cpu, outcome.database_cpu = cpu_after - cpu, database_after - database_cpu
        return outcome

    async def _send_once(self, n: int, phase: Phase, outcome: Outcome) -> None:
        """And again, if refused and told when, until the time is up."""
        await asyncio.sleep(phase.spread * n / phase.people)
        path, ends = self._next_path(n), outcome.began + phase.timeout
        while True:
            answer = await self._send(n, path, phase, outcome)
            comes_again = time.monotonic() + answer.retry_after
            if answer.status != 503 or not phase.comes_back or comes_again > ends:
                return
            await asyncio.sleep(answer.retry_after)

    async def _send_repeatedly(self, n: int, phase: Phase, outcome: Outcome) -> None:
        while time.monotonic() < outcome.began + phase.seconds:
            answer = await self._send(n, self._next_path(n), phase, outcome)
            if answer.status != 200:  # a server that refuses at once is not asked as fast as it can
                await asyncio.sleep(0.5)

    def _hang_up(self) -> None:
        """Every phase begins with new connections: a server may just be closing those that were idle."""
        for connection in filter(None, self._connections):
            if connection.is_open:
                connection.close()

    def _next_path(self, n: int) -> str:
        paths = self._plan.people[n].paths
        self._turns[n] += 1
        return paths[self._turns[n] % len(paths)]

    async def _send(self, n: int, path: str, phase: Phase, outcome: Outcome) -> Answer:
        person = self._plan.people[n]
        form = urlencode({"csrf_token": person.csrf, "message": phase.message})
        request = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {phase.accept}\r\n"
            f"Cookie: {person.cookie}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            f"Content-Length: {len(form)}\r\n\r\n{form}"
        ).encode()
        began = time.monotonic()
        try:
            connection = self._connections[n]
            if connection is None or not connection.is_open:
                connection = self._connections[n] = await connected(self._plan.port)
            answer = await connection.ask(request, phase.timeout)
        except OSError as exc:
            answer = Answer(0, b"", b"", began, None, time.monotonic() - began, type(exc).__name__)
        code = "" if answer.is_whole(phase.reply) else answer.code
        outcome.sent.append(
            Sent(
                n,
                began - outcome.began,
                answer.status,
                code,
                answer.first,
                answer.began + answer.took - began,
            )
        )
        return answer

    def _cpu(self) -> tuple[float, float]:
        database = self._plan.database_pid
        return cpu_seconds(of_group(self._plan.group)), cpu_seconds(descendants(database) if database else [])


async def main(plan: Plan) -> dict[str, Any]:
    crowd = Crowd(plan)
    up_at = await crowd.wait_until_up()
    return {"up_at": up_at, "outcomes": [asdict(await crowd.play(phase)) for phase in plan.phases]}


def read_plan(text: str) -> Plan:
    plan = json.loads(text)
    people = [Person(each["cookie"], each["csrf"], tuple(each["paths"])) for each in plan.pop("people")]
    return Plan(**plan | {"people": people, "phases": [Phase(**each) for each in plan["phases"]]})


def read_outcomes(text: str) -> tuple[float, list[Outcome]]:
    """When the server first answered, and what happened then."""
    found = json.loads(text)
    outcomes = [
        Outcome(**each | {"sent": [Sent(**one) for one in each["sent"]]}) for each in found["outcomes"]
    ]
    return found["up_at"], outcomes


if __name__ == "__main__":
    allow_open_files()
    gc.disable()  # nothing here lives long
    json.dump(asyncio.run(main(read_plan(sys.stdin.read()))), sys.stdout)
