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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from bench.turns.exchange import Answer, Connection, connected
from bench.turns.peers.chainlit_client import ChainlitConnection
from bench.turns.plans import Outcome, Phase, Plan, Sent, read_plan
from bench.turns.processes import allow_open_files, cpu_seconds, descendants, machine_cpu_seconds, of_group
from bench.turns.ways import WAYS

START_SECONDS = 60.0
POLL_SECONDS = 0.02
ANSWERS_EACH = 3  # in a loop
LONGEST_LOOP = 5  # times as long as it was asked for
REFUSED_PAUSE = 0.5  # seconds: a server that refuses at once is not asked as fast as it can


class Crowd:
    def __init__(self, plan: Plan) -> None:
        self._plan, self._way = plan, WAYS[plan.way]
        self._connections: list[Connection | ChainlitConnection | None] = [None] * len(plan.people)
        self._turns = [0] * len(plan.people)

    async def wait_until_up(self) -> float:
        """When all hosts had answered."""
        for port in self._plan.ports:
            answered = await self._wait_until_up(port)
        return answered

    async def _wait_until_up(self, port: int) -> float:
        ends = time.monotonic() + START_SECONDS
        request = f"GET {self._plan.ready_path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        while time.monotonic() < ends:
            try:
                connection = await connected(port)
                if (await connection.ask(request.encode(), 5)).status == 200:
                    return time.monotonic()
            except OSError:
                pass
            await asyncio.sleep(POLL_SECONDS)
        raise SystemExit("the server did not answer")

    async def play(self, phase: Phase) -> Outcome:
        self._hang_up()
        await asyncio.sleep(phase.pause)
        outcome = Outcome(began=time.monotonic())
        if phase.kind == "loop":
            await self._loop(phase, outcome)
        else:
            with self._measured(outcome):
                await asyncio.gather(*(self._send_once(n, phase, outcome) for n in range(phase.people)))
        return outcome

    async def _loop(self, phase: Phase, outcome: Outcome) -> None:
        """What is measured is the time in which everybody sends, and what was answered in it. If the answers
        take long, that time is longer, so that it has some of everybody in it.
        """
        over = asyncio.Event()
        everybody = (self._send_repeatedly(n, phase, outcome, over) for n in range(phase.people))
        sending = asyncio.gather(*everybody)
        await asyncio.sleep(phase.warm_up)
        before = len(outcome.sent)
        with self._measured(outcome):
            await asyncio.sleep(phase.seconds)
            latest = outcome.began + LONGEST_LOOP * phase.seconds
            enough = before + ANSWERS_EACH * phase.people
            while len(outcome.sent) < enough and time.monotonic() < latest:
                await asyncio.sleep(POLL_SECONDS)
        over.set()
        await sending
        began, ended = outcome.began, outcome.ended
        outcome.sent = [each for each in outcome.sent if each.code or began <= each.ended <= ended]

    @contextmanager
    def _measured(self, outcome: Outcome) -> Iterator[None]:
        outcome.began, before = time.monotonic(), self._cpu()
        yield
        outcome.ended, after = time.monotonic(), self._cpu()
        used = [b - a for a, b in zip(before, after, strict=True)]
        outcome.cpu, outcome.database_cpu, outcome.others_cpu = used

    async def _send_once(self, n: int, phase: Phase, outcome: Outcome) -> None:
        """And again, if refused and told when, until the time is up."""
        await asyncio.sleep(phase.spread * n / phase.people)
        path, ends = self._next_path(n), time.monotonic() + phase.timeout
        while True:
            answer = await self._send(n, path, phase, outcome)
            comes_again = time.monotonic() + answer.retry_after
            if answer.status != 503 or not phase.comes_back or comes_again > ends:
                return
            await asyncio.sleep(answer.retry_after)

    async def _send_repeatedly(self, n: int, phase: Phase, outcome: Outcome, over: asyncio.Event) -> None:
        while not over.is_set():
            answer = await self._send(n, self._next_path(n), phase, outcome)
            if answer.status != 200:
                await asyncio.sleep(REFUSED_PAUSE)

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
        request = self._way.request(self._plan.people[n], path, phase)
        began = time.monotonic()
        try:
            connection = self._connections[n]
            if connection is None or not connection.is_open:
                port = self._plan.ports[n % len(self._plan.ports)]
                connection = self._connections[n] = await self._way.connected(port)
            answer = await connection.ask(request, phase.timeout)
        except OSError as exc:
            answer = Answer(0, b"", b"", time.monotonic(), None, type(exc).__name__)
        first = None if answer.first is None else answer.first - began
        outcome.sent.append(Sent(n, began, answer.ended, answer.status, answer.fault(phase.reply), first))
        return answer

    def _cpu(self) -> tuple[float, float, float]:
        """Of the server, of its database, and of everything else on the machine that is not the bench's."""
        server, database = cpu_seconds(of_group(self._plan.group)), self._plan.database_pid
        of_database = cpu_seconds(descendants(database)) if database else 0.0
        of_bench = cpu_seconds(descendants(self._plan.bench_pid))
        return server, of_database, machine_cpu_seconds() - of_bench - of_database


async def main(plan: Plan) -> dict[str, Any]:
    crowd = Crowd(plan)
    up_at = await crowd.wait_until_up()
    cpu = cpu_seconds(of_group(plan.group))
    outcomes = [asdict(await crowd.play(phase)) for phase in plan.phases]
    return {"up_at": up_at, "start_cpu": cpu, "outcomes": outcomes}


if __name__ == "__main__":
    allow_open_files()
    gc.disable()  # nothing here lives long
    json.dump(asyncio.run(main(read_plan(sys.stdin.read()))), sys.stdout)
