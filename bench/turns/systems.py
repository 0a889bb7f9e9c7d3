"""What is measured: each system is prepared once and started in a fresh directory for each measurement."""

from __future__ import annotations

import compileall
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from sqlalchemy import create_engine, text

from agentapp.parsing import settings_of
from agentapp.server.options import ServerOptions
from bench.turns import people
from bench.turns.peers.installing import installed
from bench.turns.peers.servers import PEERS, Peer
from bench.turns.plans import Person
from bench.turns.postgres import Postgres, SlowLink
from bench.turns.processes import ROOT
from bench.turns.starting import started
from tests.support.redis_server import redis_server
from tests.support.server import SCRIPTS, free_port

OPTIONS = settings_of(ServerOptions)
WORKERS, THREADS = OPTIONS["workers"].default, OPTIONS["threads"].default
LOG = "output.txt"
RATES_OFF = {f"AGENTAPP_RATE_{name}": "off" for name in ("SESSION", "USER", "TENANT")}


@dataclass(frozen=True)
class Running:
    """A server that was just started and may not answer yet."""

    pid: int
    ports: list[int]  # of each host one
    began: float  # on the monotonic clock
    directory: Path
    database_url: str = ""  # for this process: not over the slow line
    database_pid: int = 0

    def output(self) -> str:
        return (self.directory / LOG).read_text(errors="replace")

    def statuses(self) -> Mapping[str, int]:
        """How many turns ended how, as agentapp's database says."""
        if not self.database_url:
            return {}
        engine = create_engine(self.database_url)
        with engine.connect() as connection:
            found = connection.execute(text("SELECT status, count(*) FROM turns GROUP BY status")).all()
        engine.dispose()
        return dict(found)


@dataclass(frozen=True)
class System:
    """One column of the table. ``prepared`` is a directory that every server gets a copy of, ``scripts``
    one that has the command.
    """

    name: str
    people: list[Person]
    prepared: Path | None = None
    postgres: Postgres | None = None
    link: SlowLink | None = None
    peer: Peer | None = None
    scripts: Path = SCRIPTS
    hosts: int = 1
    has_redis: bool = False
    app: str = ""  # in place of the shipped one, as ``module:name``

    @property
    def is_agentapp(self) -> bool:
        return self.name not in ("bare", "naive") and self.peer is None

    @property
    def way(self) -> str:
        return self.peer.way if self.peer else "form"

    @property
    def env(self) -> Mapping[str, str]:
        return self.peer.env if self.peer else {}

    @property
    def ready_path(self) -> str:
        if self.peer:
            return self.peer.ready_path
        return "/livez" if self.is_agentapp else "/"

    def command(self, ports: list[int]) -> list[str]:
        """Of one process, in whose process group all others are."""
        if self.hosts > 1:
            serve = [shlex.join(self._command(port)) for port in ports]
            return ["sh", "-c", f"{' & '.join(serve)} & wait"]
        return self._command(*ports)

    def _command(self, port: int) -> list[str]:
        if self.peer:
            return self.peer.command(self.scripts, port, WORKERS)
        address = f"127.0.0.1:{port}"
        if self.app:
            served = ["-c", str(ROOT / "gunicorn.conf.py"), "--pythonpath", str(ROOT), self.app]
            return ["env", f"AGENTAPP_BIND={address}", str(self.scripts / "gunicorn"), *served]
        if self.is_agentapp:
            return [str(self.scripts / "agentapp"), "serve", "--bind", address]
        size = ["--workers", WORKERS, "--threads", THREADS, "--bind", address]
        gunicorn = [str(self.scripts / "gunicorn"), "--no-control-socket", "-k", "gthread", *size]
        return [*gunicorn, "--pythonpath", str(ROOT), f"bench.turns.{self.name}:app"]

    @contextmanager
    def database(self, directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
        """The URL of the database of a server in that directory, and the variables that say so."""
        if self.postgres is None:
            yield f"sqlite:///{directory}/instance/agentapp.sqlite3" if self.is_agentapp else "", {}
            return
        with self.postgres.database() as url, self._redis() as variables:
            over = self.postgres.url_over(self.link, url) if self.link else url
            yield url, {"AGENTAPP_DATABASE_URL": over, **variables}

    @contextmanager
    def _redis(self) -> Iterator[dict[str, str]]:
        if not self.has_redis:
            yield {}
            return
        with redis_server() as redis:
            yield {"AGENTAPP_REDIS_URL": redis.url}


class Systems:
    """Makes the systems by their names. What they need ends with ``held``."""

    def __init__(self, home: Path, held: ExitStack, peers: Path) -> None:
        self._home, self._held, self._peers, self._model_port = home, held, peers, free_port()
        # As pip does when it installs. With PYTHONDONTWRITEBYTECODE every process would compile all anew.
        for package in ("agentapp", "bench"):
            compileall.compile_dir(ROOT / package, quiet=1)
        model = [sys.executable, "-m", "bench.turns.model", "--port", str(self._model_port)]
        held.enter_context(started(model, ROOT, home / "model.txt"))

    def make(self, name: str) -> System:
        base, _, hosts = name.partition("-x")
        if hosts:
            return replace(self.make(base), name=name, hosts=int(hosts))
        kind, _, milliseconds = name.removesuffix("ms").partition("+")
        match kind:
            case "bare":
                return System(name, people.strangers("/messages"))
            case "naive":
                directory = self._prepared(name)
                found = people.add_naive_people(f"sqlite:///{directory}/naive.sqlite3")
                return System(name, found, directory)
            case "sqlite":
                directory = self._prepared(name)
                return System(name, people.add_people(directory / "instance"), directory)
            case "postgres":
                postgres, directory, found = self._on_postgres
                link = postgres.link(float(milliseconds)) if milliseconds else None
                return System(name, found, directory, postgres, link)
            case "redis":
                postgres, directory, found = self._on_postgres
                return System(name, found, directory, postgres, has_redis=True)
        if peer := PEERS.get(name):
            return self._of_others(peer)
        raise SystemExit(f"no such system: {name}")

    def _of_others(self, peer: Peer) -> System:
        scripts, directory = installed(peer.name, self._peers), self._prepared(peer.name)
        shutil.copy(peer.source, directory)
        return System(peer.name, people.strangers(peer.path), directory, peer=peer, scripts=scripts)

    @cached_property
    def _on_postgres(self) -> tuple[Postgres, Path, list[Person]]:
        postgres, directory = Postgres(self._held), self._prepared("postgres")
        return postgres, directory, people.add_people(directory / "instance", postgres.template_url)

    def _prepared(self, name: str) -> Path:
        directory = self._home / f"prepared-{name}"
        directory.mkdir()
        return directory

    @contextmanager
    def serving(self, system: System, env: Mapping[str, str], *, is_empty: bool = False) -> Iterator[Running]:
        """In a fresh directory, which may be empty; all is gone at the end, whatever happens."""
        ports = [free_port() for _ in range(system.hosts)]
        directory = self._home / f"{system.name}-{secrets.token_hex(4)}"
        directory.mkdir()
        if system.prepared and not is_empty:
            shutil.copytree(system.prepared, directory, dirs_exist_ok=True)
        model = {
            "ANTHROPIC_API_KEY": "sk-bench",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{self._model_port}",
        }
        try:
            with system.database(directory) as (url, variables):
                began, pid = time.monotonic(), system.postgres.pid if system.postgres else 0
                command = system.command(ports)
                variables = {**model, **system.env, **variables, **env}
                with started(command, directory, directory / LOG, variables) as server:
                    yield Running(server, ports, began, directory, url, pid)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
