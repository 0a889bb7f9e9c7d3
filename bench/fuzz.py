"""Sends odd requests to a fresh server and looks at every answer.

    python -m bench.fuzz [--requests 100000] [--seed N]

All routes and methods, with own, foreign, absent and malformed ids, all kinds of bodies, headers, cookies and
tokens, of two users of two tenants, of a stranger and of a client without cookies, over a dozen connections.
The server has default settings, except that the rates for messages and new chats are off: with them nearly
every answer would be a 429. The rate of sign-ins stays. The demo model answers without a pause.

Exits with 1 if there was a 5xx that is not promised, another's mark in an answer, no answer within 10 s, a
traceback or a mark in the log, a worker that ended, or a turn that is left running.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from agentapp.config import Settings
from tests.support.fuzzing import RATES_OFF, fuzz
from tests.support.server import SCRIPTS, server

SHOWN = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    wanted = parser.parse_args()
    print(f"seed {wanted.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="agentapp-fuzz-") as home:
        directory, env = Path(home), {**RATES_OFF, "AGENTAPP_DEMO_DELAY": "0"}
        command = (SCRIPTS / "agentapp", "serve")
        database = f"sqlite:///{directory}/instance/agentapp.sqlite3"
        settings = Settings(instance=directory, database_url=database, secret_key="s" * 32)
        with server(directory, command=command, workers=2, threads=512, env=env) as running:
            fuzzed, found = fuzz(running, database, settings, requests=wanted.requests, seed=wanted.seed)
    print(fuzzed.table())
    for name, figure in found.figures.items():
        print(f"{name}: {figure}")
    for wrong in found.wrong[:SHOWN]:
        print(f"WRONG: {wrong}")
    if len(found.wrong) > SHOWN:
        print(f"WRONG: and {len(found.wrong) - SHOWN} more")
    sys.exit(bool(found.wrong))


if __name__ == "__main__":
    main()
