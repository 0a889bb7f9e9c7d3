"""Three hosts on one database, two of them with wrong clocks: nothing that they compare goes by those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.host_clocks import hosts
from tests.support.http_client import Visitor
from tests.support.postgres import migrated_postgres_url
from tests.support.server import Server
from tests.support.server_users import (
    TIMEOUT_SECONDS,
    Seat,
    add_people,
)
from tests.support.users import PASSWORD

AHEAD = (0.0, 30.0, -30.0)  # seconds
LIMIT = 20
LONG = 900

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with migrated_postgres_url() as found:
        add_people(found, ["ann", "bob", "cleo", "dan", "otto"])
        yield found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, url: str) -> Iterator[tuple[Server, ...]]:
    directory = tmp_path_factory.mktemp("hosts")
    with hosts(directory, url, AHEAD, rate_user=f"{LIMIT}/hour", breaker_cooldown=LONG) as running:
        yield running


def everywhere(places: tuple[Server, ...], name: str) -> list[Seat]:
    """One chat, at a browser for each host, which has signed in there."""
    visitors = [Visitor(place.url, TIMEOUT_SECONDS) for place in places]
    for visitor in visitors:
        visitor.sign_in(name, PASSWORD)
    chat = visitors[0].new_chat()
    return [Seat(visitor, chat) for visitor in visitors]


def test_a_rate_lets_exactly_as_many_in_as_it_says_over_all_hosts(places: tuple[Server, ...]) -> None:
    """One after the other, at another host each time."""
    seats = everywhere(places, "ann")
    statuses = Counter(seats[n % 3].send("hello").status for n in range(3 * LIMIT))
    assert statuses == {200: LIMIT, 429: 2 * LIMIT}
