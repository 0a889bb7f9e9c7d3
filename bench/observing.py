"""What it costs to see: the checks of isolation and the metrics, beside a build without them.

    python -m bench.observing clean [--turns 10000]
    python -m bench.observing cost [--pairs 20]
    python -m bench.observing share

``clean`` sends so many turns, to see that the isolation score stays at exactly 1, and how many checks those
are. ``cost`` has apps in one process, of which one reports to nobody and checks nothing, and sends turns to
each in turn. It prints how much more CPU time a turn takes with checks and metrics: the median of all
pairs, and the worst. The same app beside itself shows how much of that is the machine. ``share`` times the
same code within one run, which a busy machine disturbs less. What the heartbeat does takes the same however
many turns there are. With the demo model, SQLite, and metrics in shared memory as under gunicorn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from unittest import mock

from flask import Flask

from agentapp import config
from agentapp.app import create_app
from agentapp.isolation import RequestScope
from agentapp.server.metrics_directory import MEMORY
from agentapp.telemetry.jobs import ReportWorker, StoreCounts
from agentapp.telemetry.measurements import Measurements
from agentapp.turns.live_agents import LiveAgents
from agentapp.turns.uncounted import UncountedTurns
from agentapp.web import hooks
from agentapp.web.parts import Parts
from bench.turns.parts import Clock, timed
from bench.turns.people import add_people
from bench.turns.plans import Person
from bench.turns.systems import RATES_OFF
from tests.support.metrics import counted

PEOPLE = 100
WARM_UP_TURNS = 200
BLOCK_TURNS = 1000
MOST = 0.02  # of a turn
FEWEST_CHECKS = 5  # a turn
OBSERVING = ("store counts", "store violations", "report worker", "find leftovers")  # jobs of the heartbeat
IN_TURNS, IN_HEARTBEAT = "in turns and requests", "once a second, or in five, in the heartbeat"
TIMED: dict[str, dict[Any, tuple[str, ...]]] = {
    IN_TURNS: {
        Measurements: ("count", "observe", "gauge", "check", "request_checked"),
        LiveAgents: ("add", "release"),
        UncountedTurns: ("note", "clear"),
        hooks: ("check_closed",),
    },
    IN_HEARTBEAT: {StoreCounts: ("run",), ReportWorker: ("run",)},
}


class Unobserved(Measurements):
    """Counts nothing."""

    def count(self, *args: Any, **labels: Any) -> None:
        pass

    def observe(self, *args: Any, **labels: Any) -> None:
        pass

    def gauge(self, *args: Any, **labels: Any) -> None:
        pass

    def check(self, *args: Any, **labels: Any) -> None:
        pass

    def request_checked(self, **labels: Any) -> None:
        pass


class UnwatchedAgents(LiveAgents):
    def add(self, crew: Any) -> None:
        pass

    def release(self, crew: Any) -> None:
        pass


@dataclass
class Build:
    """An app with people who send to their chats in turn."""

    app: Flask
    paths: Iterator[tuple[Person, str]]
    observed: bool

    @property
    def parts(self) -> Parts:
        found: Parts = self.app.extensions["agentapp"]
        return found

    def send(self, turns: int) -> None:
        client = self.app.test_client(use_cookies=False)
        for person, path in islice(self.paths, turns):
            headers = {"Cookie": person.cookie, "Accept": "application/json"}
            answer = client.post(path, data={"csrf_token": person.csrf, "message": "hello"}, headers=headers)
            assert answer.status_code == 200, answer.text

    def seconds(self, turns: int) -> float:
        """Of CPU, with the heartbeat's, which begins with the first turn and ends with the last."""
        with ExitStack() as held:
            if not self.observed:
                for name in ("web.hooks.check_closed", "web.turns.stream_check"):
                    held.enter_context(mock.patch(f"agentapp.{name}", _check_nothing))
            began = time.process_time()
            self.send(turns)
            self.parts.turns.close()
            return time.process_time() - began


def _check_nothing(app: Parts, scope: RequestScope, **_: Any) -> Callable[[], None]:
    app.open_requests.remove(scope.request_id)
    return lambda: None


NOTHING: dict[str, Any] = {"check_closed": _check_nothing}


@contextmanager
def built(home: Path, *, observed: bool = True) -> Iterator[Build]:
    home.mkdir()
    people = add_people(home / "instance", count=PEOPLE)
    chosen = {"AGENTAPP_INSTANCE": str(home / "instance"), "AGENTAPP_DEMO_DELAY": "0", **RATES_OFF}
    with ExitStack() as held:
        if not observed:
            held.enter_context(mock.patch("agentapp.app.Measurements", Unobserved))
            held.enter_context(mock.patch("agentapp.app.LiveAgents", UnwatchedAgents))
        app = create_app(config.load(chosen, bind="127.0.0.1:8000"))
    paths = cycle([(person, path) for person in people for path in person.paths])
    build = Build(app, paths, observed)
    parts = build.parts
    if observed:
        directory = held.enter_context(tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None))
        parts.telemetry.metrics.join(Path(directory), 0)
        parts.turns.kit.uncounted.join(Path(directory), 0)
    else:
        for thread in parts.turns.heartbeat.threads:
            thread.jobs = tuple(each for each in thread.jobs if each.job.name not in OBSERVING)
    try:
        build.send(WARM_UP_TURNS)
        yield build
    finally:
        parts.close()


def clean(home: Path, turns: int) -> bool:
    with built(home / "clean") as build:
        build.send(turns - WARM_UP_TURNS)
        parts = build.parts
        with parts.binder.bound(RequestScope(request_id="bench")):
            score = parts.isolation.now()
        found = counted(parts, "isolation_checks_total", "turns_total", "isolation_violations_total")
    print(f"isolation score after {turns:,} turns: {score}")
    for name, count in found.items():
        print(f"  {name}: {count:,.0f}")
    return (
        score == 1
        and found.get("turns_total completed") == turns
        and found["isolation_checks_total"] > FEWEST_CHECKS * turns
    )


def cost(home: Path, pairs: int) -> bool:
    with (
        built(home / "with") as seen,
        built(home / "beside") as beside,
        built(home / "without", observed=False) as unseen,
    ):
        ratios: dict[str, list[float]] = {"with, beside without": [], "with, beside itself": []}
        micros: dict[str, list[float]] = {"with": [], "without": []}
        for number in range(pairs):
            builds = {"with": seen, "without": unseen, "beside": beside}
            names = list(builds) if number % 2 else list(reversed(builds))
            took = {name: builds[name].seconds(BLOCK_TURNS) for name in names}
            ratios["with, beside without"].append(took["with"] / took["without"] - 1)
            ratios["with, beside itself"].append(took["with"] / took["beside"] - 1)
            for name, values in micros.items():
                values.append(took[name] / BLOCK_TURNS * 1e6)
    print(f"CPU of a JSON turn, {pairs} times {BLOCK_TURNS} turns of each build, in microseconds:")
    for name, values in micros.items():
        print(f"  {name:10} median {statistics.median(values):8,.0f}   least {min(values):8,.0f}")
    for name, shares in ratios.items():
        quartiles = statistics.quantiles(shares, n=4)
        print(
            f"  {name}: median {statistics.median(shares):+.1%}, "
            f"middle half {quartiles[0]:+.1%} to {quartiles[2]:+.1%}, worst {max(shares):+.1%}"
        )
    least = min(micros["with"]) / min(micros["without"]) - 1
    print(f"  of the least of each: {least:+.1%}")
    return statistics.median(ratios["with, beside without"]) < MOST


def share(home: Path, runs: int = 15) -> bool:
    """What the clock itself takes is found by timing functions that do nothing in the place of each."""
    found: dict[str, list[float]] = {part: [] for part in TIMED}
    with built(home / "share") as build:
        for _ in range(runs):
            whole, real = timed_parts(build, lambda owner, name: getattr(owner, name))
            _, empty = timed_parts(build, lambda owner, name: NOTHING.get(name, _do_nothing))
            for part, shares in found.items():
                shares.append((real[part] - empty[part]) / (whole - sum(real.values())))
    print(f"of the CPU of all else, {runs} times {BLOCK_TURNS} turns:")
    for part, shares in found.items():
        print(f"  {part}: median {statistics.median(shares):.2%}, worst {max(shares):.2%}")
    return statistics.median(found[IN_TURNS]) < MOST


def timed_parts(build: Build, function: Callable[[Any, str], Any]) -> tuple[float, Counter[str]]:
    """The seconds of all, and those of each part, with these functions in their places."""
    clock = Clock()
    with ExitStack() as held:
        for part, owners in TIMED.items():
            for owner, names in owners.items():
                for name in names:
                    there = timed_from_outside(clock, part, function(owner, name))
                    held.enter_context(mock.patch.object(owner, name, there))
        return build.seconds(BLOCK_TURNS), clock.seconds


def timed_from_outside(clock: Clock, part: str, function: Any) -> Any:
    """What one of them calls of the others is in its time: the clock runs once for all of it."""
    measured = timed(clock, part, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        is_inside = bool(clock._here.__dict__.get("stack"))
        return (function if is_inside else measured)(*args, **kwargs)

    return call


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("clean", "cost", "share"))
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentapp-bench-") as home:
        if options.what == "clean":
            holds = clean(Path(home), options.turns)
        elif options.what == "cost":
            holds = cost(Path(home), options.pairs)
        else:
            holds = share(Path(home))
    print("holds" if holds else "DOES NOT HOLD")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
