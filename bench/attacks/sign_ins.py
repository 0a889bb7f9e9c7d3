"""200 connections that sign in as fast as they can, while other people sign in from the same address.

    python -m bench.attacks.sign_ins [--names 1] [--wrong] [--connections 200] [--seconds 15]

With the right password of one account, of a few (``--names 5``), or with a wrong one for names that do not
exist (``--wrong --names 200``). Prints how long the others took before and during the attack. Fails if
anybody else did not get in, or took longer than a second at the 99th percentile.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from agentapp.isolation import ThreadBinder
from agentapp.storage import migrate
from agentapp.storage.accounts import Accounts
from agentapp.storage.db import Database
from bench.attacks.fresh_server import report
from tests.support.attacks import sign_ins_attacked
from tests.support.server import SCRIPTS, server
from tests.support.users import PASSWORD

SERVE = (SCRIPTS / "agentapp", "serve")
PEOPLE = tuple(f"person-{number}" for number in range(30))
MAX_P99_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--names", type=int, default=1)
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=15.0)
    chosen = parser.parse_args()
    names = [f"attacker-{number}" for number in range(chosen.names)]
    with tempfile.TemporaryDirectory(prefix="agentapp-attack-") as home:
        directory = Path(home)
        (directory / "instance").mkdir()
        url = f"sqlite:///{directory / 'instance' / 'agentapp.sqlite3'}"
        migrate.upgrade(url)
        add_accounts(url, [*PEOPLE, *(() if chosen.wrong else names)])
        with server(directory, workers=2, threads=512, command=SERVE) as running:
            found = sign_ins_attacked(
                running.url,
                names,
                "wrong" if chosen.wrong else PASSWORD,
                PEOPLE,
                connections=chosen.connections,
                seconds=chosen.seconds,
                p99=MAX_P99_SECONDS,
            )
    report(f"sign_ins: {chosen.connections} connections, {chosen.names} names", found)


def add_accounts(url: str, names: list[str]) -> None:
    """With real hashes: their cost is what the attack is about."""
    db = Database(url, ThreadBinder())
    accounts = Accounts(db)
    for name in names:
        accounts.add(name, PASSWORD)
    db.close()


if __name__ == "__main__":
    main()
