"""What is measured: each system is prepared once and started in a fresh directory for each measurement."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import create_engine, text

from agentapp.parsing import settings_of
from agentapp.server.options import ServerOptions
from bench.turns import people
from bench.turns.load import Person
from tests.support.server import SCRIPTS, clean_env, free_port

ROOT = Path(__file__).parent.parent.parent
OPTIONS = settings_of(ServerOptions)
WORKERS, THREADS = OPTIONS["workers"].default, OPTIONS["threads"].default
LOG = "output.txt"
RATES_OFF = {f"AGENTAPP_RATE_{name}": "off" for name in ("SESSION", "USER", "TENANT")}


@dataclass(frozen=True)
class Running:
    """A server that was just started and may not answer yet."""

    pid: int
    port: int
    directory: Path
    database_url: str

    def output(self) -> str:
        return (self.directory / LOG).read_text(errors="replace")


@dataclass
class System:
    """One column of the table. ``prepared`` is a directory that a server gets a copy of."""

    name: str
    ready_path: str
    people: list[Person]
    prepared: Path | None = None
    template_url: str | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def is_agentapp(self) -> bool:
        return self.ready_path == "/livez"


class Systems:
    """Makes the systems by their names, and everything they need. Closing it ends all of that."""

    def __init__(self, home: Path, held: ExitStack) -> None:
        self._home, self._held = home, held
        self.model_port = free_port()
        model = [sys.executable, "-m", "bench.turns.model", "--port", str(self.model_port)]
        held.enter_context(started(model, ROOT, home / "model.txt"))

    def make(self, name: str) -> System:
        if name == "bare":
            return System(name, "/", people.bare_people())
        prepared = self._home / f"prepared-{name}"
        prepared.mkdir()
        if name == "naive":
            naive_people = people.add_naive_people(f"sqlite:///{prepared}/naive.sqlite3")
            return System(name, "/", naive_people, prepared)
        if name == "sqlite":
            return System(name, "/livez", people.add_people(prepared / "instance"), prepared)
        raise SystemExit(f"no such system: {name}")

    @contextmanager
    def serving(self, system: System, env: Mapping[str, str]) -> Iterator[Running]:
        """In a fresh directory; gone at the end, whatever happens."""
        port, directory = free_port(), self._home / f"{system.name}-{secrets.token_hex(4)}"
        if system.prepared:
            shutil.copytree(system.prepared, directory)
        else:
            directory.mkdir()
        variables = {
            "ANTHROPIC_API_KEY": "sk-bench",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{self.model_port}",
            **env,
        }
        try:
            log = directory / LOG
            with started(command(system, port), directory, log, variables) as pid:
                yield Running(pid, port, directory, f"sqlite:///{directory}/instance/agentapp.sqlite3")
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def statuses(self, system: System, running: Running) -> Mapping[str, int]:
        """How many turns there are with which status, as agentapp's database says."""
        if not system.is_agentapp:
            return {}
        engine = create_engine(running.database_url)
        with engine.connect() as connection:
            found = connection.execute(text("SELECT status, count(*) FROM turns GROUP BY status")).all()
        engine.dispose()
        return dict(found)


def command(system: System, port: int) -> list[str]:
    address = f"127.0.0.1:{port}"
    if system.is_agentapp:
        return [str(SCRIPTS / "agentapp"), "serve", "--bind", address]
    gunicorn = [str(SCRIPTS / "gunicorn"), "--no-control-socket", "-k", "gthread", "--pythonpath", str(ROOT)]
    size = ["--workers", WORKERS, "--threads", THREADS, "--bind", address]
    return [*gunicorn, *size, f"bench.turns.{system.name}:app"]


@contextmanager
def started(
    command: list[str], directory: Path, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[int]:
    """A command in a process group of its own, of which nothing is left at the end."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=clean_env(**(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
