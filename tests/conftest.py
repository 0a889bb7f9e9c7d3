"""Fixtures, and the detector that fails any test which leaves something behind."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from argon2 import PasswordHasher
from flask import Flask
from flask.testing import FlaskClient
from jinja2 import FileSystemBytecodeCache

from agentapp.agents.team import Team
from agentapp.app import create_app
from agentapp.config import Settings
from agentapp.storage import migrate
from agentapp.storage.accounts import Accounts
from agentapp.web.parts import Parts
from tests.support.databases import DATABASES, migrated
from tests.support.forked_pytest import COMPILED, MIGRATED
from tests.support.rounds import ROUNDS
from tests.support.statements import statements_noted
from tests.support.users import Person, person

# What no test says for itself. Hypothesis would try 100.
hypothesis.settings.register_profile("suite", max_examples=20 if ROUNDS == 1 else 100 * ROUNDS)
hypothesis.settings.load_profile("suite")

OWNED = re.compile(
    r"\b(?:FROM|UPDATE|JOIN)\s+(sessions|turns|turn_events|charged_turns|messages|notes|search_entries)\b",
    re.I,
)


# The files that take longest. They begin first: no worker is left with one when the others have ended.
LONG_FILES = (
    "tests/server/test_survive_served.py",
    "tests/server/test_hosts.py",
    "tests/server/test_guardrails_served.py",
    "tests/server/test_rolling_restart.py",
    "tests/server/test_rolling_upgrade.py",
    "tests/server/test_clocks_served.py",
    "tests/browser/test_browser_turns.py",
    "tests/server/test_start.py",
    "tests/server/test_front_door.py",
    "tests/test_bugs_put_back.py",
    "tests/browser/test_browser_limits.py",
    "tests/server/test_charging_served.py",
    "tests/turns/test_heartbeat.py",
    "tests/browser/test_browser.py",
    "tests/server/test_load.py",
    "tests/turns/test_turn.py",
    "tests/web/test_incoming.py",
    "tests/storage/test_search.py",
    "tests/storage/test_storage.py",
    "tests/storage/test_migrations.py",
    "tests/server/test_outage_served.py",
    "tests/turns/test_outage.py",
    "tests/server/test_budget_served.py",
    "tests/server/test_shares_served.py",
    "tests/cli/test_breakers.py",
    "tests/web/test_isolation_measured.py",
    "tests/turns/test_charging.py",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "violates: the test provokes a breach of isolation on purpose")
    keep_compiled_files(config)


def keep_compiled_files(config: pytest.Config) -> None:
    """Where the environment says that nothing compiled is to be written, each worker and each server that a
    test starts would compile everything anew. They write into the directory that pytest has anyway.
    """
    cache = getattr(config, "cache", None)
    if cache is not None and os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(cache.mkdir("compiled"))
        sys.dont_write_bytecode = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two for each core: much of the suite waits for servers, browsers and deadlines."""
    return 2 * (os.cpu_count() or 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With one process the order is that of the files; with several they are handed out in this one."""
    if not hasattr(config, "workerinput"):
        return
    begins = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: begins.get(item.nodeid.partition("::")[0], len(LONG_FILES)))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with all tables. Runs of `tests.support.forked_pytest` are given theirs."""
    if MIGRATED in os.environ:
        return Path(os.environ[MIGRATED])
    path = tmp_path_factory.mktemp("template") / "empty.sqlite3"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def compiled_pages(tmp_path_factory: pytest.TempPathFactory) -> FileSystemBytecodeCache:
    """Each app would compile the templates anew, which takes longer than most tests do."""
    return FileSystemBytecodeCache(os.environ.get(COMPILED) or str(tmp_path_factory.mktemp("pages")))


@pytest.fixture
def settings(tmp_path: Path, sqlite_template: Path) -> Settings:
    database = tmp_path / "test.sqlite3"
    shutil.copy(sqlite_template, database)
    return Settings(
        instance=tmp_path, database_url=f"sqlite:///{database}", secret_key="s" * 32, demo_delay=0.0
    )


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, settings: Settings) -> Iterator[str]:
    """An empty database with all tables. The test runs on SQLite and on PostgreSQL."""
    with migrated(request.param, settings) as url:
        yield url


@pytest.fixture
def make_app(
    request: pytest.FixtureRequest, settings: Settings, compiled_pages: FileSystemBytecodeCache
) -> Iterator[Callable[..., Flask]]:
    """Makes apps, and checks after the test that each is as clean as it was new."""
    apps: list[Flask] = []

    def make(team: Team | None = None, wanted: Settings = settings) -> Flask:
        app = create_app(wanted, team)
        app.jinja_env.bytecode_cache = compiled_pages
        apps.append(app)
        # The same algorithm with the smallest parameters: hundreds of tests sign in.
        accounts: Accounts = apps[-1].extensions["agentapp"].accounts
        accounts._hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
        accounts._decoy_hash = accounts._hasher.hash("nobody")
        return apps[-1]

    yield make
    for app in apps:
        parts: Parts = app.extensions["agentapp"]
        ended = ended_by_themselves(parts)
        parts.turns.close()
        left_in_use = parts.db.connections_in_use()
        parts.close()
        left = parts.binder.sweep()
        assert ended, "a turn still runs after the test"
        assert left is None, f"still bound after the test: {left}"
        assert parts.db.open_readers() == 0, "a database session was left open"
        assert left_in_use == 0, "a database connection was left checked out"
        if request.node.get_closest_marker("violates") is None:
            assert parts.telemetry.counts() == {}


def ended_by_themselves(parts: Parts) -> bool:
    """Whether all turns end within a few seconds, without being interrupted."""
    ends = time.monotonic() + 10
    while not parts.drain(3600):
        if time.monotonic() > ends:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def app(make_app: Callable[..., Flask]) -> Flask:
    return make_app()


@pytest.fixture
def any_app(make_app: Callable[..., Flask], settings: Settings, database_url: str) -> Flask:
    """One on SQLite, and one on PostgreSQL."""
    return make_app(wanted=replace(settings, database_url=database_url))


@pytest.fixture
def parts(app: Flask) -> Parts:
    found: Parts = app.extensions["agentapp"]
    return found


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """Somebody who is not signed in."""
    return app.test_client()


@pytest.fixture
def ann(app: Flask) -> Person:
    return person(app, "ann")


@pytest.fixture
def bob(app: Flask) -> Person:
    return person(app, "bob", tenant="elsewhere")


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("agentapp-"):
            thread.join(max(0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} outlived the test"


@pytest.fixture(autouse=True)
def every_query_names_its_owner() -> Iterator[None]:
    """Any query on a user's data without both tenant and user in its WHERE clause fails the test."""
    nameless: list[str] = []

    def look(statement: str, parameters: Any) -> None:
        if not OWNED.search(statement):
            return
        if re.match(r"\s*(CREATE|DROP|ALTER)", statement, re.I):
            return
        condition = re.split(r"\bWHERE\b", statement, maxsplit=1, flags=re.I)[1:]
        if not condition or "tenant_id =" not in condition[0] or "user_id =" not in condition[0]:
            nameless.append(statement)

    with statements_noted(look):
        yield
    assert not nameless, f"the owner is missing from: {nameless[0]}"
