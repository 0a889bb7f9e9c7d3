"""Three hosts on one database, two of them with wrong clocks: nothing that they compare goes by those."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.support.host_clocks import hosts
from tests.support.http_client import Stream, Visitor
from tests.support.postgres import migrated_postgres_url
from tests.support.server import Server
from tests.support.server_users import (
    TIMEOUT_SECONDS,
    Seat,
    add_people,
    at_once,
    cells,
    let_cool_down,
    refusal,
    rows,
    wait_for,
)
from tests.support.users import PASSWORD

# Seconds. With the last one every minute that is counted would be another one.
AHEAD = (0.0, 30.0, -90.0)
LIMIT, LONG = 20, 900
# Others look for turns without a lease every two seconds, and for silent workers every five.
LOOKED_AT = 6.0
# What is meant to be later than when it is written.
IN_FUTURE = {"expires_at", "lease_until", "next_at", "next_delivery_at"}

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with migrated_postgres_url() as found:
        add_people(found, ["ann", "bob", "cleo", "dan", "eve", "fay"])
        yield found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, url: str) -> Iterator[tuple[Server, ...]]:
    directory = tmp_path_factory.mktemp("hosts")
    settings = {"rate_user": f"{LIMIT}/hour", "breaker_cooldown": LONG, "demo_delay": 0}
    with hosts(directory, url, AHEAD, **settings) as running:
        yield running


def sit(places: tuple[Server, ...], name: str) -> list[Seat]:
    """One chat and one login, at each of the hosts. The first of them signs in."""
    first = Visitor(places[0].url, TIMEOUT_SECONDS)
    first.sign_in(name, PASSWORD)
    chat = first.new_chat()
    return [
        Seat(Visitor(place.url, TIMEOUT_SECONDS, dict(first.cookies), first.csrf), chat) for place in places
    ]


def test_a_rate_lets_exactly_as_many_in_as_it_says_over_all_hosts(places: tuple[Server, ...]) -> None:
    seats = sit(places, "ann")
    answers = [seats[n % 3].send("hello") for n in range(2 * LIMIT)]
    assert Counter(answer.status for answer in answers) == {200: LIMIT, 429: LIMIT}
    waits = [refusal(seat.send("hello"), 429, "rate-limited", "user")["retry_after"] for seat in seats]
    assert max(waits) - min(waits) <= 15, waits


def test_who_signs_in_at_any_host_is_signed_in_at_all_of_them_at_once(places: tuple[Server, ...]) -> None:
    for name, first in zip(("bob", "cleo", "dan"), range(3), strict=True):
        seats = sit((*places[first:], *places[:first]), name)
        assert [seat.send("hello").status for seat in seats] == [200] * 3, "the token counts everywhere too"
        assert seats[1].visitor.post("/logout").status == 303
        assert [seat.send("hello").status for seat in seats] == [401] * 3


def test_turns_of_any_host_are_let_play_and_can_be_followed_and_stopped_at_any_other(
    places: tuple[Server, ...],
) -> None:
    """Three go on for longer than it takes the others to look at them; the fourth is stopped elsewhere."""
    seats = [sit((*places[at:], *places[:at]), "eve") for at in range(3)]
    stopped = sit(places, "fay")
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(each[0].send, f"/slow {LOOKED_AT}") for each in seats]
        last = pool.submit(stopped[1].send, "/slow 100")
        turns = [running_turn(each[1]) for each in seats]
        followed = [pool.submit(read, each[2], turn) for each, turn in zip(seats, turns, strict=True)]
        stop = f"/chat/{stopped[2].chat}/turns/{running_turn(stopped[2])}/stop"
        assert stopped[2].visitor.post(stop, "application/json").status in (200, 202)
        assert [answer.result().status for answer in sent] == [200] * 3
        assert [events.result() for events in followed] == ["completed"] * 3
        last.result()
    assert [each[2].statuses() for each in seats] == [["completed"]] * 3
    assert stopped[0].statuses() == ["stopped"]


def running_turn(seat: Seat) -> str:
    """Of this chat, as this host knows it."""
    found: list[str] = []

    def seen() -> bool:
        exported = json.loads(seat.visitor.get(f"/chat/{seat.chat}/export.json").body)
        found[:] = [turn["id"] for turn in exported["turns"] if turn["status"] == "running"]
        return bool(found)

    wait_for(seen)
    return found[0]


def read(seat: Seat, turn: str) -> str:
    """The status with which it ends."""
    events = list(Stream(seat.visitor, f"/chat/{seat.chat}/turns/{turn}/events"))
    return str(events[-1].data["status"])


def test_a_breaker_is_open_at_all_hosts_for_as_long_and_then_one_may_try(
    places: tuple[Server, ...], url: str
) -> None:
    seats = sit(places, "bob")
    for n in range(3):
        assert seats[(n + 1) % 3].send("/fail").status == 502
    waits = [refusal(seat.send("hello"), 503, "breaker-open", "session")["retry_after"] for seat in seats]
    assert max(waits) - min(waits) <= 10, waits
    let_cool_down(url, "session")
    assert cells(url)["session", seats[0].chat]["breaker"]["trips"] == 1
    statuses = [answer.status for answer in at_once([partial(seat.send, "/slow 1") for seat in seats])]
    assert statuses.count(200) == 1
    assert set(statuses) <= {200, 409, 503}, "the others meet a chat that is busy, or a breaker that is tried"


def test_a_host_with_a_wrong_clock_says_so(places: tuple[Server, ...]) -> None:
    right, ahead, behind = places
    wait_for(lambda: "30.0 s ahead of the database server's" in ahead.output())
    wait_for(lambda: "90.0 s behind the database server's" in behind.output())
    assert "database server's" not in right.output()
    answers = {place.url: Visitor(place.url).get("/readyz", "application/json") for place in places}
    assert [answers[place.url].status for place in places] == [200, 503, 503]
    assert "clock: this host's clock is 30.0 s ahead of" in answers[ahead.url].text


def test_all_that_the_hosts_have_stored_is_dated_by_the_database(
    places: tuple[Server, ...], url: str
) -> None:
    """The last test here: there is something of all the others."""
    seats = sit(places, "cleo")
    for seat in seats:
        seat.visitor.get("/nothing-here")
    wait_for(lambda: rows(url, "SELECT count(DISTINCT id) FROM workers")[0][0] == 3)
    began = min(float(each.log.parent.joinpath("sitecustomize.py").stat().st_mtime) for each in places)
    columns = rows(
        url,
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = 'public' AND data_type = 'timestamp with time zone'",
    )
    checked = 0
    for table, column in columns:
        if column in IN_FUTURE:
            continue
        ((first, last),) = rows(
            url, f"SELECT extract(epoch FROM min({column})), extract(epoch FROM max({column})) FROM {table}"
        )
        if first is not None:
            checked += 1
            assert began - 10 <= float(first) <= float(last) <= time.time() + 1, (table, column)
    assert checked >= 12, "sessions, messages, turns, logins, audit rows, workers and so on"
    ((first, last),) = rows(url, "SELECT min(minute), max(minute) FROM minute_counts")
    assert (began - 10) // 60 <= first <= last <= time.time() // 60
    ((first, last),) = rows(url, "SELECT min(updated_at), max(updated_at) FROM guardrail_cells")
    assert began - 10 <= first <= last <= time.time() + 1
    ((latest,),) = rows(url, "SELECT extract(epoch FROM max(expires_at)) FROM logins")
    assert float(latest) <= time.time() + 30 * 86_400 + 1
