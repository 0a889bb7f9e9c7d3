"""A fresh server for an attack: an empty directory, default settings, started as the README says."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.attacks import Attack, attacked
from tests.support.retrying_users import Found
from tests.support.server import SCRIPTS, Server, clean_env, free_port, started, wait_until_up
from tests.support.users import PASSWORD

LIVE_P99_SECONDS = 0.3


@contextmanager
def fresh_server(*people: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="agentapp-attack-") as home:
        directory, port = Path(home), free_port()
        agentapp = SCRIPTS / "agentapp"
        for name in people:
            subprocess.run(
                [agentapp, "user", "add", name, "--password-stdin"],
                cwd=directory,
                env=clean_env(),
                input=PASSWORD.encode(),
                check=True,
                capture_output=True,
            )
        log = directory / "output.txt"
        command = (agentapp, "serve", "--bind", f"127.0.0.1:{port}")
        with started(command, directory, log, {}) as process:
            running = Server(f"http://127.0.0.1:{port}", process, log)
            wait_until_up(running)
            yield running


def run(title: str, attack: Attack, live_p99: float = LIVE_P99_SECONDS) -> None:
    """Attack a fresh server, print what was measured, and exit with 1 if anything did not hold."""
    with fresh_server("anna") as running:
        report(title, attacked(running, "anna", attack, live_p99=live_p99))


def report(title: str, found: Found) -> None:
    print(title)
    for name, figure in found.figures.items():
        print(f"  {name}: {figure}")
    for wrong in (*found.wrong, *found.slow):
        print(f"  WRONG: {wrong}")
    sys.exit(bool(found.wrong or found.slow))
