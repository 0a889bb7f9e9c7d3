"""`agentapp serve` and a database that is not there yet, or can never be used."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentapp.cli import waiting
from agentapp.cli.waiting import wait_for_database
from agentapp.errors import DiskFull, StorageUnavailable
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.server import SCRIPTS, Server, free_port, run, server, started, wait_until_up

SERVE = (SCRIPTS / "agentapp", "serve")
ACCESS = """
host all postgres 127.0.0.1/32 trust
host all locked   127.0.0.1/32 scram-sha-256
"""


@pytest.fixture(scope="module")
def place() -> Iterator[PostgresServer]:
    """Some of its users need a password."""
    with tempfile.NamedTemporaryFile("w", prefix="agentapp-hba-") as access:
        access.write(ACCESS)
        access.flush()
        os.chmod(access.name, 0o644)
        with postgres_server({"hba_file": access.name}) as made:
            made.execute("CREATE ROLE locked LOGIN PASSWORD 'the right one'")
            yield made


def wait_for(claim: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not claim():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.02)


def environment(url: str, port: int) -> dict[str, str]:
    return {
        "AGENTAPP_DATABASE_URL": url,
        "AGENTAPP_BIND": f"127.0.0.1:{port}",
        "AGENTAPP_WORKERS": "1",
        "AGENTAPP_LOG_LEVEL": "warning",
    }


def test_serve_waits_for_the_database_and_serves_when_it_is_there(
    place: PostgresServer, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "output.txt"
    place.execute("CREATE DATABASE empty")
    url = place.url_of("empty")
    place.stop()
    try:
        with started(None, tmp_path, log, environment(url, port)) as process:
            wait_for(lambda: "waiting for the database" in log.read_text())
            assert process.poll() is None
            assert "cannot reach the database" in log.read_text()
            place.start()
            running = Server(f"http://127.0.0.1:{port}", process, log)
            wait_until_up(running)
            assert running.setup_link
            assert "the database is there after" in log.read_text()
            assert log.read_text().count("waiting for") == 1, "once, and then once a minute"
    finally:
        if not place.is_running:
            place.start()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_who_waits_is_ended_at_once_and_leaves_no_process(tmp_path: Path, how: int, code: int) -> None:
    log = tmp_path / "output.txt"
    nobody = f"postgresql+psycopg://me@127.0.0.1:{free_port()}/none"
    with started(SERVE, tmp_path, log, environment(nobody, free_port())) as process:
        wait_for(lambda: "waiting for the database" in log.read_text())
        (child,) = [
            int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
        process.send_signal(how)
        assert process.wait(5) == code
        wait_for(lambda: not Path(f"/proc/{child}").exists())
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("user", "database", "problem"),
    [
        ("locked:wrong@", "agentapp", "password authentication failed"),
        ("locked@", "agentapp", "no password supplied"),
        ("nobody@", "agentapp", "no pg_hba.conf entry"),
        ("postgres@", "missing", 'database "missing" does not exist'),
    ],
    ids=["password", "no-password", "user", "database"],
)
def test_what_waiting_does_not_change_is_one_line_at_once(
    place: PostgresServer, tmp_path: Path, user: str, database: str, problem: str
) -> None:
    url = f"postgresql+psycopg://{user}127.0.0.1:{place.port}/{database}"
    done = run(*SERVE, directory=tmp_path, env=environment(url, free_port()))
    assert done.returncode == 2
    assert done.stderr.startswith("agentapp: cannot migrate the database: ")
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
    assert "wrong" not in done.stderr


def test_a_link_of_each_of_two_hosts_works_until_the_first_account(
    place: PostgresServer, tmp_path: Path
) -> None:
    """Each is a whole server of its own; they begin on one empty database."""
    place.execute("CREATE DATABASE shared")
    hosts = [tmp_path / "a", tmp_path / "b"]
    for each in hosts:
        each.mkdir()
    env = {
        "AGENTAPP_DATABASE_URL": place.url_of("shared"),
        "AGENTAPP_HOSTS": "chat.example.org,127.0.0.1",
        "AGENTAPP_HTTPS": "1",
        "AGENTAPP_SECRET_KEY": "s" * 32,
    }
    with server(hosts[0], env=env) as first, server(hosts[1], env=env) as second:
        links = [str(each.setup_link) for each in (first, second)]
    assert all(link.startswith("https://chat.example.org/setup?token=") for link in links), links
    assert links[0] != links[1]
    digests = place.execute("SELECT digest FROM setup_links", "shared")
    assert len(digests) == 2, "neither host has taken away the other's link"


def test_it_is_told_at_once_and_then_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def attempt() -> str:
        if now < 150:
            raise StorageUnavailable("cannot reach the database: connection refused")
        return "there"

    monkeypatch.setattr(waiting.time, "sleep", sleep)
    assert wait_for_database(attempt) == "there"
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in lines] == [
        " waiting for the database for 0 s",
        " waiting for the database for 60 s",
        " waiting for the database for 120 s",
        " the database is there after 150 s",
    ]

    def full() -> str:
        raise DiskFull("no room")

    with pytest.raises(DiskFull):
        wait_for_database(full)
