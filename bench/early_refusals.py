"""What a refused message costs the database, with Redis and without.

    python -m bench.early_refusals [--messages 2000]

One user with an empty rate sends on eight threads, to an app on PostgreSQL. Prints refusals a second, their
median and 99th percentile, and statements on the database for each. The same with Redis, in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

from agentapp.app import create_app
from agentapp.config import Settings
from agentapp.errors import RateLimited
from agentapp.turns.turn import Turn
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.support.postgres import migrated_postgres_url
from tests.support.redis_server import shared_url
from tests.support.statements import statements_noted
from tests.support.turns import someone

THREADS = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_000)
    messages = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as directory:
        for redis_url in (None, shared_url(), None, shared_url()):
            with migrated_postgres_url() as url:
                settings = Settings(
                    instance=Path(directory),
                    database_url=url,
                    secret_key="s" * 32,
                    demo_delay=0.0,
                    provider="demo",
                )
                parts: Parts = create_app(
                    replace(settings, redis_url=redis_url, rate_user=(1, 3600.0))
                ).extensions["agentapp"]
                try:
                    print(f"{'with' if redis_url else 'without':>8} Redis: {measured(parts, messages)}")
                finally:
                    parts.close()
    sys.exit(0)


def measured(parts: Parts, messages: int) -> str:
    ann = someone(parts, "ann")
    Turn.begin(parts.turns.kit, ann, NewMessage("hello")).finish()  # type: ignore[union-attr]
    sent, times = count(), list[float]()

    def send(_: int) -> None:
        began = time.monotonic()
        try:
            Turn.begin(parts.turns.kit, ann, NewMessage("hello"))
        except RateLimited:
            times.append(time.monotonic() - began)

    with statements_noted(lambda text, _: next(sent), parts.db), ThreadPoolExecutor(THREADS) as pool:
        began = time.monotonic()
        list(pool.map(send, range(messages)))
        took = time.monotonic() - began
    p99 = statistics.quantiles(times, n=100)[98]
    return (
        f"{len(times) / took:6,.0f} refusals/s, median {statistics.median(times) * 1000:.1f} ms, "
        f"p99 {p99 * 1000:.1f} ms, {next(sent) / len(times):.2f} statements each"
    )


if __name__ == "__main__":
    main()
