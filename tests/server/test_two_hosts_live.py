"""Turns read and stopped at the other of two hosts, which share a PostgreSQL and a Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tests.support import two_hosts
from tests.support.databases import migrated_in
from tests.support.redis_server import RedisServer, redis_server
from tests.support.rounds import ROUNDS
from tests.support.two_hosts import TwoHosts

FROZEN_SECONDS = 2.0


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def two(
    tmp_path_factory: pytest.TempPathFactory, redis: RedisServer, sqlite_template: Path
) -> Iterator[TwoHosts]:
    directory = tmp_path_factory.mktemp("two")
    with (
        migrated_in(directory, "postgresql", sqlite_template) as url,
        two_hosts.two_hosts(directory, url, redis_url=redis.url, workers=1) as running,
    ):
        yield running


def test_a_turn_is_followed_at_the_other_host_exactly(two: TwoHosts) -> None:
    found = two_hosts.follows(two, 12 * ROUNDS)
    assert found.wrong == [], found.wrong[:10]


def test_a_stop_at_the_other_host_ends_the_turn(two: TwoHosts) -> None:
    found = two_hosts.stops(two, 6 * ROUNDS)
    assert found.wrong == [], found.wrong[:10]


def test_while_redis_is_flushed_restarted_and_frozen_every_reader_gets_every_event_once(
    two: TwoHosts, redis: RedisServer
) -> None:
    def freeze() -> None:
        with redis.frozen():
            time.sleep(FROZEN_SECONDS)

    troubles = cycle((redis.flush, redis.restart, freeze))
    found = two_hosts.follows(two, 24 * ROUNDS, trouble=lambda: next(troubles)())
    assert found.wrong == [], found.wrong[:10]
