"""What the server survives, many times over: prints what was measured, and fails if anything was lost.

    python -m bench.survive kills [--count 1000] [--database sqlite|postgresql] [--redis]

A real server with two workers, a local server that speaks the Messages API, and clients that check every
byte they get. ``kills``, ``terms``, ``hups`` and ``recycles`` end workers or the server while people talk;
``resumes``, ``doubles``, ``silent``, ``stops``, ``streams``, ``logins`` and ``disconnects`` are what readers
and models do; ``counts`` kills four workers that also end by themselves, and compares the metrics with what
people were told, as ``kills``, ``hups`` and ``recycles`` do too; ``charges`` and ``killed-charges`` end
answers and workers at random moments and compare what was charged with what the model received and sent;
``outages`` stops a PostgreSQL of its own for 10 s each, restarts it at once as after a crash, and freezes it
for 50 s. ``follows``, ``host-stops`` and ``troubles`` have two servers: answers are read and stopped at the
other one; in ``troubles`` the Redis that they share is flushed, restarted and frozen meanwhile. The suite
does each of them a few times.

``streams`` and ``silent`` need some thousands of open files: see ``ulimit -n``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentapp.storage import migrate
from agentapp.storage.write_permits import WritePermits
from tests.support import (
    charging_scenarios,
    client_scenarios,
    outage_scenarios,
    shutdown_scenarios,
    two_hosts,
)
from tests.support.databases import migrated_in
from tests.support.outage_scenarios import frozen_for, stopped_for
from tests.support.postgres_server import postgres_server
from tests.support.redis_server import redis_server, shared_url
from tests.support.retrying_users import CountingModel, Found, Installation, Words, installation, memory
from tests.support.server import SCRIPTS, free_port
from tests.support.two_hosts import TwoHosts

ROOT = Path(__file__).parent.parent
SERVE = (SCRIPTS / "agentapp", "serve")  # with all that it takes to start, and to hash a password
GRACE = 8.0
DEADLINE = 15.0  # long enough for all to be silent together
SLOW = 0.15  # seconds a word: most are in the middle of an answer when a worker is killed
OUTAGE_SECONDS, FROZEN_SECONDS = 10.0, 50.0
WATCHED = 10.0  # seconds for which commits are counted
WORDS = 30  # of a slow answer
REDIS_FROZEN_SECONDS = 2.0
RATE = 250  # of all slow answers' words together, a second: more would measure the machine

Run = Callable[..., Found]  # of a directory, the address of a database, how often; and settings


def with_installation(scenario: Callable[[Installation, int], Found], **settings: Any) -> Run:
    def run(directory: Path, url: str, count: int, **more: Any) -> Found:
        with installation(directory, url, command=SERVE, threads=512, **settings, **more) as running:
            return scenario(running, count)

    return run


def with_two_hosts(scenario: Callable[[TwoHosts, int], Found]) -> Run:
    def run(directory: Path, url: str, count: int, **more: Any) -> Found:
        with two_hosts.two_hosts(directory, url, command=SERVE, **more) as running:
            return scenario(running, count)

    return run


def troubles(directory: Path, url: str, count: int, **more: Any) -> Found:
    """The Redis is one of its own: it is flushed, restarted and frozen."""
    with redis_server() as redis:

        def freeze() -> None:
            with redis.frozen():
                time.sleep(REDIS_FROZEN_SECONDS)

        makes = itertools.cycle((redis.flush, redis.restart, freeze))
        with two_hosts.two_hosts(directory, url, command=SERVE, **more | {"redis_url": redis.url}) as running:
            return two_hosts.follows(running, count, trouble=lambda: next(makes)())


def terms(directory: Path, url: str, count: int, **more: Any) -> Found:
    chosen = {"command": SERVE, "port": free_port(), "grace": GRACE, "model": CountingModel(), **more}
    serve = partial(installation, directory, url, **chosen)
    return shutdown_scenarios.terms(serve, count, GRACE)


def streams(directory: Path, url: str, count: int, **more: Any) -> Found:
    """First 50, then all: what the heartbeat writes must not grow with them."""
    command = (SCRIPTS / "gunicorn", "-c", ROOT / "gunicorn.conf.py", "--pythonpath", ROOT)
    together, pause = Found(), max(0.4, count / RATE)
    for number in sorted({min(50, count), count}):
        threads, deadlines = max(512, number + 100), {"turn_deadline": 600, "gap_deadline": 60, **more}
        served = partial(
            installation, directory, url, demo=True, threads=threads, demo_delay=pause, **deadlines
        )
        with served(command=(*command, "bench.survive:counted()")) as running:
            found = watched_streams(running, directory, number)
        together.figures |= {f"{number:,} streams: {name}": figure for name, figure in found.figures.items()}
        together.wrong += found.wrong
        together.slow += found.slow
    return together


def watched_streams(running: Installation, directory: Path, count: int) -> Found:
    said = Words("", f"/long {WORDS}", " ".join(map(str, range(1, WORDS + 1))))
    figures: dict[str, object] = {}

    def meanwhile() -> None:
        before = commits(directory)
        time.sleep(WATCHED)
        figures["heartbeat transactions a second"] = f"{(commits(directory) - before) / WATCHED:.1f}"
        figures["memory of each"] = f"{(memory(running.running) - at_rest) / count / 1024:,.0f} KiB"

    at_rest = memory(running.running)
    found = client_scenarios.streams(running, count, said, meanwhile)
    found.figures |= figures
    return found


def killed_charges(directory: Path, url: str, count: int, **more: Any) -> Found:
    """With Redis events are stored every second, and not four times in one."""
    tolerance = 0.25 if "redis_url" in more else 0.1
    scenario = partial(charging_scenarios.kills, tolerance=tolerance)
    return with_installation(scenario, **charging_scenarios.SETTINGS)(directory, url, count, **more)


def counted() -> Any:
    """The application; each worker counts its heartbeat's write transactions in a file of its own."""
    from agentapp.app import create_app

    count, take = 0, WritePermits.take

    def counting(permits: WritePermits, seconds: float, **rest: Any) -> None:
        nonlocal count
        take(permits, seconds, **rest)
        if threading.current_thread().name.startswith("agentapp-heartbeat"):
            count += 1
            Path(f"commits-{os.getpid()}").write_text(str(count))

    WritePermits.take = counting  # type: ignore[method-assign]
    return create_app()


def commits(directory: Path) -> int:
    return sum(int(path.read_text() or "0") for path in directory.glob("commits-*"))


def outages(directory: Path, url: str, count: int, **more: Any) -> Found:
    these = [stopped_for(OUTAGE_SECONDS, ("fast", "immediate")[number % 2]) for number in range(count)]
    these += [stopped_for(0, "immediate"), frozen_for(FROZEN_SECONDS)]
    settings = {"command": SERVE, "word_seconds": SLOW, **outage_scenarios.SETTINGS, **more}
    with postgres_server() as postgres, installation(directory, postgres.url, **settings) as running:
        return outage_scenarios.outages(running, postgres, these)


RUNS: Mapping[str, tuple[Run, int]] = MappingProxyType(
    {
        "kills": (
            with_installation(partial(shutdown_scenarios.kills, sessions=60), word_seconds=SLOW),
            1_000,
        ),
        "terms": (terms, 100),
        "hups": (
            with_installation(lambda running, count: shutdown_scenarios.replacements(running, count, 0)),
            20,
        ),
        "counts": (
            with_installation(
                partial(shutdown_scenarios.kills, sessions=40),
                demo=True,
                workers=4,
                gunicorn="--max-requests 60 --max-requests-jitter 40",
            ),
            50,
        ),
        "recycles": (
            with_installation(
                lambda running, count: shutdown_scenarios.replacements(running, 0, count),
                gunicorn="--max-requests 60 --max-requests-jitter 40",
            ),
            20,
        ),
        "resumes": (with_installation(client_scenarios.resumes), 1_000),
        "doubles": (with_installation(client_scenarios.doubles), 1_000),
        "silent": (
            with_installation(
                partial(client_scenarios.silent, deadline=DEADLINE), first_token_deadline=DEADLINE
            ),
            500,
        ),
        "stops": (with_installation(client_scenarios.stops), 200),
        "streams": (streams, 500),
        "follows": (with_two_hosts(two_hosts.follows), 500),
        "host-stops": (with_two_hosts(two_hosts.stops), 200),
        "troubles": (troubles, 500),
        "logins": (with_installation(lambda running, count: client_scenarios.logins(running)), 1),
        "disconnects": (with_installation(client_scenarios.disconnects), 200),
        "charges": (with_installation(charging_scenarios.ends, **charging_scenarios.SETTINGS), 200),
        "outages": (outages, 20),
        "killed-charges": (killed_charges, 50),
    }
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("--count", type=int)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--redis", action="store_true", help="with a Redis")
    options = parser.parse_args()
    if options.name == "outages":
        options.database = "postgresql"
    run, usual = RUNS[options.name]
    with tempfile.TemporaryDirectory(prefix="agentapp-bench-") as home:
        template = Path(home, "template.sqlite3")
        migrate.upgrade(f"sqlite:///{template}")
        more = {"redis_url": shared_url()} if options.redis else {}
        with migrated_in(Path(home), options.database, template) as url:
            found = run(Path(home), url, options.count or usual, **more)
    print(f"{options.name} on {options.database}{' with Redis' if options.redis else ''}")
    for name, figure in found.figures.items():
        print(f"  {name}: {figure}")
    for wrong in (*found.wrong[:50], *found.slow):
        print(f"  WRONG: {wrong}")
    print(f"  {len(found.wrong) + len(found.slow)} violations")
    sys.exit(bool(found.wrong or found.slow))


if __name__ == "__main__":
    main()
