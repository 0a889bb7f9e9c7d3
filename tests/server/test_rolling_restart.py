"""Two hosts behind nginx are restarted one after the other while people go on: nothing fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hosts import Hosts, hosts, needs_hosts
from tests.support.postgres import migrated_postgres_url
from tests.support.rolling_restarts import Way, roll
from tests.support.rounds import ROUNDS

pytestmark = needs_hosts


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with migrated_postgres_url() as url:
        yield url


@pytest.fixture(scope="module")
def running(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with hosts(tmp_path_factory.mktemp("rolling"), database, demo_delay=0.02) as running:
        yield running


# Each host in one of the ways, or both in both.
@pytest.mark.parametrize("ways", [("documented", "plain")] if ROUNDS == 1 else [("documented",), ("plain",)])
def test_no_message_and_no_page_fails(running: Hosts, database: str, ways: tuple[Way, ...]) -> None:
    tried, kept, _ = roll(running, database, ways, ROUNDS, senders=4, readers=2, clickers=3)
    assert tried.failed == []
    assert kept == []
    assert tried.done.total() > len(tried.sent) > 0
    assert "Traceback" not in running.output()
