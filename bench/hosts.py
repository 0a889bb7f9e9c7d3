"""Several hosts behind nginx: prints what was measured, and fails if anything was lost or let through.

    python -m bench.hosts rolling [--count 20] [--way documented|plain]
    python -m bench.hosts exact [--count 5] [--clock 30] [--redis]
    python -m bench.hosts frozen [--seconds 30]

Two hosts, each with two workers in a PID namespace of its own (so it needs root), on one PostgreSQL.
``rolling`` restarts one after the other while people go on who try everything once. ``exact`` sends more than
is allowed to both at once. ``frozen`` has one stand still.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support import host_scenarios
from tests.support.hosts import hosts, why_no_hosts
from tests.support.messages_api import MessagesApi
from tests.support.nginx import NGINX
from tests.support.postgres import migrated_postgres_url
from tests.support.retrying_users import Found
from tests.support.rolling_restarts import roll
from tests.support.server import SCRIPTS
from tests.support.server_users import obey_the_last

# The same few chats go on for all of the run.
NO_BUDGETS = {
    "budget_session_tokens": "off",
    "budget_user_day_usd": "off",
    "budget_tenant_month_usd": "off",
    "storage_user_mb": "off",
}
SERVE = (SCRIPTS / "agentapp", "serve")  # with all that it takes to start


@contextmanager
def redis_url(wanted: bool) -> Iterator[str | None]:
    if not wanted:
        yield None
        return
    from tests.support.redis_server import redis_server

    with redis_server() as running:
        yield running.url


def rolling(options: argparse.Namespace, home: Path, database: str, redis: str | None) -> Found:
    found = Found()
    with hosts(home, database, redis_url=redis, command=SERVE, **NO_BUDGETS, demo_delay=0.02) as running:
        tried, kept, took = roll(running, database, (options.way,), options.count or 20, tell=print)
        found.wrong += tried.failed + kept
        found.figures["tried"] = dict(tried.done)
        found.note_times("pages and forms", tried.seconds)
        found.note_times("from SIGTERM to the end of a host", took)
        found.claim("Traceback" not in running.output(), running.output()[-2000:])
    return found


def exact(options: argparse.Namespace, home: Path, database: str, redis: str | None) -> Found:
    with MessagesApi(responder=obey_the_last) as api:
        more = {"api": api, "redis_url": redis, "clocks": (0, options.clock), "command": SERVE}
        with hosts(home, database, **more, **host_scenarios.EXACT) as running:
            return host_scenarios.exact(running, database, api, options.count or 5)


def frozen(options: argparse.Namespace, home: Path, database: str, redis: str | None) -> Found:
    with (
        MessagesApi(responder=obey_the_last) as api,
        hosts(home, database, api=api, redis_url=redis, command=SERVE) as running,
    ):
        return host_scenarios.frozen(running, database, api, options.seconds)


RUNS = {"rolling": rolling, "exact": exact, "frozen": frozen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("--count", type=int)
    parser.add_argument("--way", choices=("documented", "plain"), default="plain")
    parser.add_argument("--clock", type=float, default=30, help="seconds by which one host is ahead")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--redis", action="store_true")
    options = parser.parse_args()
    if NGINX is None or why_no_hosts():
        parser.error(why_no_hosts() or "there is no nginx")
    with ExitStack() as held:
        home = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="agentapp-bench-")))
        database = held.enter_context(migrated_postgres_url())
        found = RUNS[options.name](options, home, database, held.enter_context(redis_url(options.redis)))
    for name, figure in found.figures.items():
        print(f"  {name}: {figure}")
    for wrong in found.wrong[:50]:
        print(f"  WRONG: {wrong}")
    print(f"  {len(found.wrong)} violations")
    sys.exit(bool(found.wrong))


if __name__ == "__main__":
    main()
