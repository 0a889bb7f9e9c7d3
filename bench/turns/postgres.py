"""A real PostgreSQL for the bench, with a fresh database for each measurement, over a slow line if asked for.

Its settings are the defaults: unlike for the tests it also waits for the disk.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import psycopg
from sqlalchemy import make_url

from bench.turns.processes import ROOT
from tests.support.postgres import administer, migrated_postgres_url
from tests.support.server import free_port


class SlowLink:
    """The process of `slow_link`. ``counts`` are from its start on."""

    def __init__(self, socket: Path, milliseconds: float, held: ExitStack) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "bench.turns.slow_link", "--port", str(self.port)]
        command += ["--to", str(socket), "--milliseconds", str(milliseconds)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the bench, which ends it
        )
        held.callback(self._end)
        assert self._process.stdout
        self._process.stdout.readline()

    def counts(self) -> dict[str, int]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        counts: dict[str, int] = json.loads(self._process.stdout.readline())
        return counts

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Postgres:
    """Started with the first use. It ends with this process."""

    def __init__(self, held: ExitStack) -> None:
        self._held = held
        self.template_url = held.enter_context(migrated_postgres_url())
        self._template = make_url(self.template_url)
        self._directory = Path(str(self._template.query["host"]))
        for statement in ("ALTER SYSTEM SET fsync = on", "SELECT pg_reload_conf()"):
            administer(statement)  # the tests switch it off
        self._links: dict[float, SlowLink] = {}

    @property
    def pid(self) -> int:
        return int((self._directory / "postmaster.pid").read_text().split()[0])

    def link(self, milliseconds: float) -> SlowLink:
        if milliseconds not in self._links:
            socket = self._directory / ".s.PGSQL.5432"
            self._links[milliseconds] = SlowLink(socket, milliseconds, self._held)
        return self._links[milliseconds]

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a copy of what was prepared."""
        name = f"bench_{secrets.token_hex(4)}"
        administer(f"CREATE DATABASE {name} TEMPLATE {self._template.database}")
        try:
            yield self._template.set(database=name).render_as_string(hide_password=False)
        finally:
            administer(f"DROP DATABASE {name} WITH (FORCE)")

    def round_trip(self, link: SlowLink) -> float:
        """How long one takes over the line in truth, in milliseconds."""
        url = make_url(self.url_over(link, self.template_url)).set(
            drivername="postgresql", database="postgres"
        )
        times = []
        with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
            for _ in range(20):
                began = time.monotonic()
                connection.execute("SELECT 1")
                times.append(time.monotonic() - began)
        return median(times) * 1000

    def url_over(self, link: SlowLink, url: str) -> str:
        """The same database over the slow line."""
        chosen = make_url(url).set(host="127.0.0.1", port=link.port, query={"sslmode": "disable"})
        return chosen.update_query_dict({"gssencmode": "disable"}).render_as_string(hide_password=False)
