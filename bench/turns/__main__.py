"""What a turn costs beside an app that only forwards it to the model, in one table.

    python -m bench.turns [WHAT] [--systems bare,naive,sqlite,postgres,postgres+5ms] [--quick]

It takes a quarter of an hour, with --quick two or three minutes.
All systems are measured in one run, one after the other and then from the beginning again, on this machine,
which they have in common with the people who send (``load.py``) and with the model (``model.py``): so it is
the ratios that count. Every measurement is made on a server of its own, in a fresh directory.

Systems
  bare          a Flask app that forwards a message with the SDK: no login, no storage
  naive         the same with a cookie, users and messages in SQLite, as one writes it in an afternoon; only
                for plain turns
  sqlite        agentapp serve, as shipped
  postgres      the same on PostgreSQL, on this machine; postgres+5ms over a line on which a round trip takes
                5 ms more, postgres+0ms over the same line without that
  redis         PostgreSQL and Redis. With -x2 behind its name (postgres-x2, redis-x2) any of these is two
                hosts, each with its own workers, and half of the people send to each
  The first two run on gunicorn's gthread with as many workers and threads as agentapp has by default.
  chainlit      a Chainlit app that forwards a message with the SDK and stores nothing. A session is an open
                tab with a WebSocket of its own. One process: it is all that Chainlit supports
  litellm       the LiteLLM proxy with as many workers, a master key and no database, asked as OpenAI's API is
  These two are other people's servers, and measured only if --systems names them, and only for plain turns.
  Each is first installed with pip into a venv below --peers, as bench/turns/peers/NAME.txt pins it.

What (by default all)
  plain         turns/s, CPU and memory of JSON turns with an instant answer, from 1, 32, 128 and 512
                sessions at once (--sessions), each of a user of its own, in 8 tenants; and bursts of first
                messages, cold and warm. AGENTAPP_RATE_SESSION, _USER and _TENANT are off: 20 messages a
                minute in a chat is what the product allows, and not how fast it is.
  postgres      the same with 32 sessions: who waits for a lock, statements and round trips a turn
  locks         on PostgreSQL, with --sessions sessions in 8 tenants: of all who wait for a lock, who waits
                for one that another tenant's turn holds. Each transaction carries the name of its tenant,
                which the product does not send, so nothing else is measured here
  streams       128 and 300 streams of 40 words, one each 0.25 s, on a server that has answered before
  burst         300, 500 and 1,000 such streams (--at-once), begun at once at the moment at which a cold
                server first answers. Default settings, and nothing is switched off: they are of 1,000 users
                of 8 tenants, so that no limit is met. Of 1,000 (with --come-back: always) whoever is
                refused with 503 comes back as Retry-After says.
  memory        RSS and PSS of the workers, idle and with 300 streams; seconds from start to first answer
  parts         where the CPU time of one turn goes, in process, and its SQL statements
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from agentapp.instance import PRIVATE_UMASK
from bench.turns import parts
from bench.turns.figures import Figures
from bench.turns.jobs import jobs
from bench.turns.peers.installing import NotInstalled, default_home
from bench.turns.processes import allow_open_files
from bench.turns.runs import RunFailed
from bench.turns.systems import System, Systems

WHAT = ("plain", "postgres", "locks", "streams", "burst", "memory", "parts")
ALL_SYSTEMS = "bare,naive,sqlite,postgres,postgres+5ms"


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.turns", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("only", nargs="?", default=None, metavar="WHAT")
    parser.add_argument("--what", default=",".join(WHAT))
    parser.add_argument("--systems", default=ALL_SYSTEMS)
    parser.add_argument("--sessions", type=numbers, default=[1, 32, 128, 512], help="for plain")
    parser.add_argument("--streams", type=numbers, default=[128, 300], help="for streams")
    parser.add_argument("--at-once", type=numbers, default=[300, 500, 1000], help="for burst")
    parser.add_argument("--seconds", type=float, default=2.5, help="of each loop of plain turns")
    parser.add_argument("--repeat", type=int, default=5, help="plain turns of 32 and 128 sessions")
    parser.add_argument("--repeat-others", type=int, default=1)
    parser.add_argument("--come-back", action="store_true")
    parser.add_argument(
        "--peers",
        type=Path,
        default=default_home(),
        metavar="DIR",
        help="where chainlit and litellm are installed",
    )
    parser.add_argument("--quick", action="store_true", help="bare and sqlite, once, in about two minutes")
    options = parser.parse_args()
    options.what = options.only or options.what
    if unknown := set(options.what.split(",")) - set(WHAT):
        parser.error(f"there is no {', '.join(unknown)} to measure: {', '.join(WHAT)}")
    if options.quick:
        options.repeat, options.sessions, options.streams, options.at_once = 1, [1, 32, 128], [], [500]
        if options.systems == ALL_SYSTEMS:
            options.systems = "bare,sqlite"
    return options


def all_made(systems: Systems, figures: Figures) -> Iterator[System]:
    for name in figures.systems:
        try:
            yield systems.make(name)
        except NotInstalled as missing:
            figures.note(f"{name}: {missing}")


def measure_all(options: argparse.Namespace, home: Path, figures: Figures, held: ExitStack) -> None:
    systems = Systems(home, held, options.peers.absolute())
    made = list(all_made(systems, figures))
    for system in made:
        if system.postgres and system.link:
            figures.note(
                f"{system.name}: a round trip takes {system.postgres.round_trip(system.link):.1f} ms"
            )
    for job in jobs(options):
        for n in range(job.often):
            for system in filter(job.systems, made):
                began = time.monotonic()
                try:
                    job.measure(systems, system, figures)
                except RunFailed as failed:
                    figures.note(f"{system.name}, {job.name}: {failed}")
                took = time.monotonic() - began
                print(f"{job.name}, {n + 1} of {job.often}: {system.name}, {took:.0f} s", file=sys.stderr)


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    allow_open_files()
    os.umask(PRIVATE_UMASK)
    figures = Figures(options.systems.split(","))
    with tempfile.TemporaryDirectory(prefix="agentapp-bench-") as home, ExitStack() as held:
        try:
            if jobs(options):
                measure_all(options, Path(home), figures, held)
        except KeyboardInterrupt:
            figures.note("interrupted: not everything was measured")
            options.what = ""
        finally:
            if figures.rows or figures.notes:
                print(figures.table())
        if "parts" in options.what.split(","):
            print("\n" + parts.report(Path(home) / "parts"))


if __name__ == "__main__":
    main()
