"""Two hosts on one database: limits are exact though clocks differ, and one that hangs stops nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.host_scenarios import EXACT, exact, frozen
from tests.support.hosts import hosts, needs_clocks, needs_hosts
from tests.support.messages_api import MessagesApi
from tests.support.postgres import migrated_postgres_url
from tests.support.rounds import ROUNDS
from tests.support.server_users import obey_the_last

pytestmark = [needs_hosts, pytest.mark.timeout(280)]


@pytest.fixture
def database() -> Iterator[str]:
    with migrated_postgres_url() as url:
        yield url


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi(responder=obey_the_last) as running:
        yield running


@needs_clocks
def test_limits_breakers_following_and_stopping_are_exact_over_both(
    tmp_path: Path, database: str, api: MessagesApi
) -> None:
    with hosts(tmp_path, database, clocks=(0, 30), api=api, **EXACT) as running:
        assert exact(running, database, api, ROUNDS).wrong == []


def test_one_that_stands_still_stops_nobody_and_doubles_nothing_later(
    tmp_path: Path, database: str, api: MessagesApi
) -> None:
    with hosts(tmp_path, database, api=api) as running:
        assert frozen(running, database, api).wrong == []
