"""The real PgBouncer in front of a PostgreSQL server, sharing its connections between transactions."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.server import free_port

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
TIMEOUT_SECONDS = 20.0

needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed")


@contextmanager
def pgbouncer(
    server_port: int, database: str = "agentapp", *, pool: int = 20, **settings: str
) -> Iterator[str]:
    """The URL of that database through it. It shares ``pool`` connections."""
    home, port = Path(tempfile.mkdtemp(prefix="agentapp-pgbouncer-")), free_port()
    lines = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": str(pool),
        "max_client_conn": "500",
        **settings,
    }
    databases = f"* = host=127.0.0.1 port={server_port} user=postgres"
    text = f"[databases]\n{databases}\n[pgbouncer]\n" + "\n".join(f"{k} = {v}" for k, v in lines.items())
    (home / "pgbouncer.ini").write_text(text)
    (home / "pgbouncer.ini").chmod(0o644)  # another user reads it, whatever umask an earlier test has set
    with open(home / "log.txt", "wb") as log:
        process = subprocess.Popen(
            [str(PROGRAM), str(home / "pgbouncer.ini")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **_not_as_root(home),
        )
    try:
        _wait_until_up(process, port, database, home)
        yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/{database}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _wait_until_up(process: subprocess.Popen[bytes], port: int, database: str, home: Path) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/{database}").close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError((home / "log.txt").read_text()) from error
            time.sleep(0.05)
        else:
            return


def _not_as_root(home: Path) -> dict[str, object]:
    """It refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam("nobody")
    os.chown(home, entry.pw_uid, entry.pw_gid)
    home.chmod(0o755)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
