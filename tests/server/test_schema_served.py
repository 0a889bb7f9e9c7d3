"""A schema that changes under a running server: workers that come back, pages and /readyz."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentapp.storage import schema
from tests.support.commands import set_revision
from tests.support.databases import DATABASES, migrated_in
from tests.support.http_client import Visitor
from tests.support.server import Server
from tests.support.server_users import Seat, add_people, seats, served, wait_for

LATER = "0099"  # a revision of a release to come


@pytest.fixture(scope="module", params=DATABASES)
def url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> Iterator[str]:
    with migrated_in(tmp_path_factory.mktemp("database"), request.param, sqlite_template) as made:
        yield made


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    add_people(url, ["ann"])
    with served(tmp_path_factory.mktemp("server"), url, workers=1, threads=16) as running:
        yield running


@pytest.fixture
def ann(server: Server) -> Seat:
    (found,) = seats(server.url, ["ann"])
    return found


@pytest.fixture(autouse=True)
def own_schema_afterwards(url: str) -> Iterator[None]:
    yield
    set_revision(url, schema.HEAD)


def kill_worker(server: Server) -> None:
    """Until another one has its place, and answers."""
    (worker,) = server.children()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: server.children() not in ([], [worker]))
    assert Visitor(server.url).get("/livez").status == 200
    assert server.process.poll() is None


def readyz(server: Server) -> tuple[int, str]:
    answer = Visitor(server.url).get("/readyz", "application/json")
    return answer.status, answer.text


def test_a_worker_that_comes_back_to_a_newer_schema_which_it_can_work_with_serves(
    server: Server, url: str, ann: Seat
) -> None:
    set_revision(url, LATER, oldest_code=schema.HEAD)
    kill_worker(server)
    assert readyz(server)[0] == 200
    assert json.loads(ann.send("a message").body)["status"] == "completed"
    assert ann.visitor.get(f"/chat/{ann.chat}").status == 200


def test_a_worker_that_comes_back_to_a_schema_which_shuts_it_out_waits_and_its_host_stays(
    server: Server, url: str, ann: Seat
) -> None:
    set_revision(url, LATER, oldest_code=LATER)
    kill_worker(server)
    status, said = readyz(server)
    assert status == 503
    assert f"at revision {LATER}, made by a newer agentapp" in said
    answer = ann.visitor.get(f"/chat/{ann.chat}", "application/json")
    assert (answer.status, json.loads(answer.body)["code"]) == (503, "storage-unavailable")
    assert LATER not in answer.text, "that is for operators"
    assert ann.send("a message").status == 503
    kill_worker(server)  # again and again, if need be
    set_revision(url, schema.HEAD)
    wait_for(lambda: ann.visitor.get(f"/chat/{ann.chat}").status == 200)  # nobody asks /readyz
    wait_for(lambda: readyz(server) == (200, "ready\n"))  # what it found is remembered for a moment
    assert json.loads(ann.send("a message").body)["status"] == "completed"


def test_a_worker_that_runs_notices_a_schema_which_shuts_it_out(server: Server, url: str, ann: Seat) -> None:
    (worker,) = server.children()
    set_revision(url, LATER, oldest_code=LATER)
    wait_for(lambda: ann.visitor.get(f"/chat/{ann.chat}").status == 503)
    wait_for(lambda: readyz(server)[0] == 503)  # what it found is remembered for a moment
    set_revision(url, schema.HEAD)
    wait_for(lambda: readyz(server)[0] == 200)
    assert json.loads(ann.send("a message").body)["status"] == "completed"
    assert server.children() == [worker]
