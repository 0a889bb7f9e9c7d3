"""The guardrails on the real server with two workers: what one does wrong, no other one feels."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.support.databases import only_postgresql, only_sqlite
from tests.support.http_client import Answer, Visitor
from tests.support.messages_api import MessagesApi
from tests.support.postgres import administer
from tests.support.rounds import ROUNDS
from tests.support.server import SCRIPTS, Server
from tests.support.server_users import (
    TIMEOUT_SECONDS,
    Seat,
    add_people,
    at_once,
    breakers,
    cells,
    let_cool_down,
    obey_the_last,
    refusal,
    reserved,
    rush,
    seats,
    served,
    wait_for,
    wait_for_half_open,
)

ROOT = Path(__file__).parents[2]
SERVE = (SCRIPTS / "agentapp", "serve")
SESSIONS = 40 if ROUNDS == 1 else 100
MOMENTS = 2 if ROUNDS == 1 else 10  # at which one of many may try
LONG, COOLDOWN = 900, 0.2  # a cool-down that no slow machine outlasts, and one to wait for

# Never asked again: the key is refused, which counts against the provider, or the request, which does not.
PROVIDER_FAILS, TURN_FAILS = "[[end-early]]", "[[status:400]]"

pytestmark = pytest.mark.timeout(280)


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi(responder=obey_the_last) as running:
        yield running


def trip(seat: Seat, times: int = 3, message: str = "/fail") -> None:
    for _ in range(times):
        answer = seat.send(message)
        assert answer.status == 502, answer.text


def test_of_many_sessions_the_tenth_that_fail_are_paused_after_three_failures_each_and_no_other(
    tmp_path: Path, database_url: str
) -> None:
    names, turns = [f"user{n}" for n in range(SESSIONS)], 5
    add_people(database_url, names)
    with served(tmp_path, database_url, breaker_cooldown=LONG, demo_delay=0.02) as running:
        everybody = seats(running.url, names)
        failing, healthy = everybody[::10], [seat for n, seat in enumerate(everybody) if n % 10]

        def talk(seat: Seat, message: str) -> list[Answer]:
            return [seat.send(message) for _ in range(turns)]

        jobs = [partial(talk, seat, "hello" if n % 10 else "/fail") for n, seat in enumerate(everybody)]
        answers = at_once(jobs)
        for n, seen in enumerate(answers):
            if n % 10:
                assert [answer.status for answer in seen] == [200] * turns, seen[-1].text
                continue
            assert [answer.status for answer in seen[:3]] == [502] * 3, seen[0].text
            for answer in seen[3:]:
                body = refusal(answer, 503, "breaker-open", "session")
                assert (body["limit"], body["used"]) == (3, 3)
        assert [seat.statuses() for seat in failing] == [["failed"] * 3] * len(failing)
        assert [seat.statuses() for seat in healthy] == [["completed"] * turns] * len(healthy)
        assert "Traceback" not in running.output()
    found = cells(database_url)
    open_ones = {id for (scope, id), cell in found.items() if cell["mark"] == "open" and scope == "session"}
    assert open_ones == {seat.chat for seat in failing}
    assert [breaker["trips"] for breaker in breakers(database_url, "session")] == [1] * len(failing)
    assert [key for key, cell in found.items() if cell["mark"] == "open" and key[0] != "session"] == []
    assert breakers(database_url, "provider") == []
    assert reserved(found) == {}


@only_sqlite
def test_an_open_breaker_outlives_workers_servers_and_more_other_sessions_than_are_remembered(
    tmp_path: Path, database_url: str
) -> None:
    add_people(database_url, ["ann"])

    def still_open(running: Server) -> None:
        """For this chat of this user: the other one answers."""
        for _ in range(4):  # whichever worker it comes to
            body = refusal(Seat(at(running), paused.chat).send("hello"), 503, "breaker-open", "session")
            assert (body["used"], "Your other chats work." in body["detail"]) == (3, True)
        assert Seat(at(running), other.chat).send("hello").status == 200
        assert cells(database_url)["session", paused.chat]["breaker"] == as_it_was

    def at(running: Server) -> Visitor:
        return Visitor(running.url, TIMEOUT_SECONDS, dict(paused.visitor.cookies), paused.visitor.csrf)

    start = partial(
        served, tmp_path, database_url, breaker_cooldown=LONG, registry_cap=20, registry_cleanup_every=5
    )
    with start() as running:
        paused, other = seats(running.url, ["ann"], 2)
        trip(paused)
        as_it_was = cells(database_url)["session", paused.chat]["breaker"]
        assert (as_it_was["trips"], as_it_was["failures"]) == (1, 3)
        still_open(running)
        assert running.stop(signal.SIGTERM) == 0
    with start() as running:
        still_open(running)
        before = running.children()
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        wait_for(lambda: len(set(running.children()) - set(before)) == 2)
        still_open(running)
        for pid in (running.pid, *running.children()):
            os.kill(pid, signal.SIGKILL)
        running.process.wait()
    with start() as running:
        still_open(running)
        with ThreadPoolExecutor(8) as pool:
            crowd = [
                seat
                for found in pool.map(seats, [running.url] * 4, [["ann"]] * 4, [SESSIONS // 2] * 4)
                for seat in found
            ]
            assert {answer.status for answer in pool.map(lambda seat: seat.send("hello"), crowd)} == {200}
        still_open(running)


@only_sqlite
def test_of_twenty_sends_after_the_cool_down_one_reaches_the_model_and_decides_for_all(
    tmp_path: Path, database_url: str, api: MessagesApi
) -> None:
    """A few times in one chat, where the others meet the running turn, and as often over twenty chats of a
    user, where they meet the breaker.
    """
    add_people(database_url, ["ann", "bob"])
    with served(tmp_path, database_url, api, breaker_cooldown=COOLDOWN, breaker_user_failures=5) as running:
        one = seats(running.url, ["ann"], 20)
        half_open_moments(
            database_url, api, "session", one[:1] * 3, [Seat(s.visitor, one[0].chat) for s in one]
        )
        many = seats(running.url, ["bob"], 20)
        half_open_moments(database_url, api, "user", many[:5], many)
    assert reserved(cells(database_url)) == {}


def half_open_moments(
    database_url: str, api: MessagesApi, scope: str, tripping: list[Seat], probing: list[Seat]
) -> None:
    is_open, trips = False, 0
    for moment in range(MOMENTS):
        if not is_open:
            for seat in tripping:
                assert seat.send(TURN_FAILS).status == 502
            trips += 1
        wait_for_half_open(database_url, scope)
        calls, (before,) = len(api.requests), breakers(database_url, scope)
        message, status = (TURN_FAILS, 502) if moment % 3 == 0 else ("hello", 200)
        with rush(api, [partial(seat.send, message) for seat in probing]) as crowd:
            assert (crowd.reached, len(crowd.refused)) == (1, 19)
        assert [answer.status for answer in crowd.answered] == [status]
        assert len(api.requests) == calls + 1
        for answer in crowd.refused:
            if scope == "user" or answer.status != 409:
                refusal(answer, 503, "breaker-open", scope)
        is_open = status == 502
        if is_open:
            (after,) = breakers(database_url, scope)
            assert (after["trips"], after["reopened"]) == (trips, before.get("reopened", 0) + 1)
            doubled = COOLDOWN * 2 ** after["reopened"]
            assert 0.9 * doubled <= after["cooldown"] <= doubled
        else:
            assert breakers(database_url, scope) == []
            assert {seat.send("and again").status for seat in tripping} == {200}


@only_sqlite
def test_when_the_prober_dies_with_its_worker_the_chat_and_the_users_room_come_back_by_themselves(
    tmp_path: Path, database_url: str, api: MessagesApi
) -> None:
    """The next worker's heartbeat finds the turns whose worker is gone, also where nobody asks for them. With
    time alone all that would be lost for minutes.
    """
    add_people(database_url, ["ann", "bob", "carl"])
    with served(tmp_path, database_url, api, breaker_cooldown=0.1, concurrent_user=1) as running:
        (prober,), (forgotten, fresh) = seats(running.url, ["ann"]), seats(running.url, ["bob"], 2)
        (carl,) = seats(running.url, ["carl"])
        trip(prober, message=TURN_FAILS)
        wait_for_half_open(database_url, "session")
        before = running.children()

        def cut_off(seat: Seat) -> Answer:
            with suppress(OSError, HTTPException):
                return seat.send("hello")
            return Answer(0, {}, b"")

        with rush(api, [partial(cut_off, prober), partial(cut_off, forgotten)]) as crowd:
            for worker in before:
                os.kill(worker, signal.SIGKILL)
            taken = Counter(scope for scope, _ in reserved(cells(database_url)))
            assert taken == {"session": 2, "user": 2, "tenant": 1}
            assert crowd.reached == 2
        assert [answer.status for answer in crowd.answered] == [0, 0]
        wait_for(lambda: len(set(running.children()) - set(before)) == 2)
        assert carl.send("hello").status == 200

        def comes_back(seat: Seat, status: int, code: str) -> None:
            end = time.monotonic() + TIMEOUT_SECONDS
            while (answer := seat.send("hello")).status != 200:
                assert (answer.status, json.loads(answer.body)["code"]) == (status, code), answer.text
                assert time.monotonic() < end, answer.text
                time.sleep(0.2)

        comes_back(prober, 409, "turn-in-progress")
        assert prober.statuses()[-2:] == ["interrupted", "completed"]
        assert breakers(database_url, "session") == []
        comes_back(fresh, 503, "busy")
        wait_for(lambda: forgotten.statuses() == ["interrupted"])
        assert forgotten.send("hello").status == 200
        assert reserved(cells(database_url)) == {}


def test_of_twenty_first_calls_of_a_new_user_exactly_as_many_pass_as_the_rate_allows(
    tmp_path: Path, database_url: str
) -> None:
    """TurnCells such users at once, so that both workers have their share of each."""
    names = [f"user{n}" for n in range(4)]
    add_people(database_url, [*names, "bob"])
    with served(tmp_path, database_url, threads=256, rate_user="7/minute") as running:
        chats, (bob,) = seats(running.url, names, 20), seats(running.url, ["bob"])
        answers = at_once([partial(seat.send, "hello") for seat in chats])
        for mine in range(0, 80, 20):
            seen = answers[mine : mine + 20]
            assert Counter(answer.status for answer in seen) == {200: 7, 429: 13}
            for answer in seen:
                if answer.status != 200:
                    body = refusal(answer, 429, "rate-limited", "user")
                    assert (body["limit"], body["used"]) == (7, 7)
        assert bob.send("hello").status == 200
        assert Counter(tuple(seat.statuses()) for seat in chats) == {("completed",): 28, (): 52}


@only_sqlite
def test_of_ten_turns_of_a_user_with_room_for_three_exactly_three_run_and_nobody_else_is_kept_out(
    tmp_path: Path, database_url: str, api: MessagesApi
) -> None:
    add_people(database_url, ["ann", "bob"])
    with served(tmp_path, database_url, api, concurrent_user=3) as running:
        chats, theirs = seats(running.url, ["ann"], 10), seats(running.url, ["bob"], 3)
        with rush(api, [partial(seat.send, "hello") for seat in chats]) as crowd:
            assert (crowd.reached, len(crowd.refused)) == (3, 7)
            for answer in crowd.refused:
                body = refusal(answer, 503, "busy", "user")
                assert (body["limit"], body["used"]) == (3, 3)
            api.respond_with(obey_the_last)
            answers = at_once([partial(seat.send, "hello") for seat in theirs])
            assert [answer.status for answer in answers] == [200] * 3
        assert [answer.status for answer in crowd.answered] == [200] * 3
        for seat in chats:
            assert seat.send("hello").status == 200
    assert reserved(cells(database_url)) == {}


@only_sqlite
def test_a_user_who_fails_in_fifty_sessions_is_paused_alone(tmp_path: Path, database_url: str) -> None:
    """At the fifteenth failure in a row over all chats. Those already under way then still fail, and change
    nothing any more.
    """
    others = [f"user{n}" for n in range(10)]
    add_people(database_url, ["ann", "bob", *others])
    limits = {"breaker_cooldown": LONG, "streams_user": "off"}
    with served(tmp_path, database_url, demo_delay=0.01, **limits) as running:
        chats, theirs = seats(running.url, ["ann"], 50), seats(running.url, others)

        def talk(seat: Seat) -> list[Answer]:
            return [seat.send("hello") for _ in range(5)]

        answers = at_once(
            [*(lambda seat=seat: [seat.send("/fail")] for seat in chats), *(partial(talk, s) for s in theirs)]
        )
        assert {answer.status for seen in answers[50:] for answer in seen} == {200}
        failures = [seen[0] for seen in answers[:50] if seen[0].status == 502]
        assert len(failures) >= 15
        for (answer,) in answers[:50]:
            if answer not in failures:
                refusal(answer, 503, "breaker-open", "user")
        for seat in chats:
            body = refusal(seat.send("hello"), 503, "breaker-open", "user")
            assert (body["limit"], body["used"]) == (15, 15)
            assert "15 errors in a row" in body["detail"]
            assert "Nobody else is affected." in body["detail"]
        assert {seat.send("hello").status for seat in theirs} == {200}
        (breaker,) = breakers(database_url, "user")
        assert (breaker["trips"], breaker["failures"]) == (1, 15)
        one_by_one = [seat.send("/fail") for _ in range(2) for seat in seats(running.url, ["bob"], 8)]
        assert [answer.status for answer in one_by_one] == [502] * 15 + [503]
        refusal(one_by_one[-1], 503, "breaker-open", "user")
    assert breakers(database_url, "session") == breakers(database_url, "provider") == []


def test_when_six_users_fail_everybody_is_told_the_same_until_one_probe_finds_the_model_well(
    tmp_path: Path, database_url: str, api: MessagesApi
) -> None:
    failing, others = [f"ill{n}" for n in range(6)], [f"well{n}" for n in range(6)]
    for tenant in range(3):
        members = (*failing[tenant::3], *others[tenant::3])
        add_people(database_url, members, tenant=f"tenant{tenant}")
    with served(tmp_path, database_url, api, breaker_cooldown=300) as running:
        ill, well = seats(running.url, failing), seats(running.url, others)
        everyone = [*ill, *well]
        for seat in well[:4]:
            assert seat.send("hello").status == 200
        with rush(api, [partial(seat.send, PROVIDER_FAILS) for seat in ill]) as crowd:
            assert crowd.reached == 6
        assert [answer.status for answer in crowd.answered] == [502] * 6
        (breaker,) = breakers(database_url, "provider")
        assert breaker["trips"] == 1

        def all_told_the_same(refused: list[Answer]) -> None:
            details = {refusal(answer, 503, "breaker-open", "provider")["detail"] for answer in refused}
            (detail,) = {re.sub(r"[\d:]+", "#", detail) for detail in details}
            assert detail.startswith("The model is not answering right now, and not only for you.")

        calls = len(api.requests)
        newcomer = seats(running.url, others[5:])
        all_told_the_same([seat.send("hello") for seat in (*everyone, *newcomer)])
        assert len(api.requests) == calls
        let_cool_down(database_url, "provider")
        with rush(api, [partial(seat.send, PROVIDER_FAILS) for seat in everyone]) as crowd:
            assert (crowd.reached, len(crowd.refused)) == (1, 11)
            all_told_the_same(crowd.refused)
        assert crowd.answered[0].status == 502
        assert {status for seat in ill for status in seat.statuses()} == {"failed"}
        assert [len(seat.statuses()) for seat in ill] == [1] * 6, "who failed was not the one who tried"
        (breaker,) = breakers(database_url, "provider")
        assert (breaker["trips"], breaker["reopened"]) == (1, 1)
        all_told_the_same([seat.send("hello") for seat in everyone])
        let_cool_down(database_url, "provider")
        with rush(api, [partial(seat.send, "hello") for seat in everyone]) as crowd:
            assert (crowd.reached, len(crowd.refused)) == (1, 11)
        assert crowd.answered[0].status == 200
        assert breakers(database_url, "provider") == []
        answers = at_once([partial(seat.send, "hello") for seat in everyone])
        assert [answer.status for answer in answers] == [200] * 12
    assert breakers(database_url, "session") == breakers(database_url, "user") == []
    assert reserved(cells(database_url)) == {}


EVERY_WAY_TO_FAIL = (
    PROVIDER_FAILS,
    "[[status:500]]",
    "[[status:429]] [[retry-after:0]]",
    "[[cut:20]]",
    "[[garbage]]",
    "[[error-event:overloaded_error]]",
    "[[hang:60]]",
    "[[stall:60]] a word",
    "[[slow:2]] one two three four five six seven eight",
    TURN_FAILS,
    "[[stop:refusal]]",
)


@only_sqlite
def test_eight_users_of_one_tenant_fail_in_every_way_and_no_other_tenant_is_refused(
    tmp_path: Path, database_url: str, api: MessagesApi
) -> None:
    """They go on until none of them is let in any more, while people of another tenant talk, and then some
    of a third one come.
    """
    ill, active, idle = ([f"{kind}{n}" for n in range(8)] for kind in ("ill", "active", "idle"))
    for names in (ill, active, idle):
        add_people(database_url, names, tenant=names[0])
    deadlines = {"first_token_deadline": 8, "gap_deadline": 8, "turn_deadline": 10}
    with served(tmp_path, database_url, api, breaker_cooldown=LONG, **deadlines) as running:
        failing, talking = seats(running.url, ill, len(EVERY_WAY_TO_FAIL)), seats(running.url, active)
        newcomers = seats(running.url, idle)

        def fail(way: str, seat: Seat) -> int:
            return seat.send(way).status

        with ThreadPoolExecutor(16) as pool:
            ways = [EVERY_WAY_TO_FAIL[n % len(EVERY_WAY_TO_FAIL)] for n in range(len(failing))]
            failed = [pool.submit(fail, way, seat) for way, seat in zip(ways, failing, strict=True)]
            while not all(one.done() for one in failed):
                answers = at_once([partial(seat.send, "hello") for seat in talking])
                assert [answer.status for answer in answers] == [200] * 8
        assert Counter(one.result() for one in failed)[503] > 10, "they were not stopped"
        answers = at_once([partial(seat.send, "hello") for seat in (*talking, *newcomers)])
        assert [answer.status for answer in answers] == [200] * 16
    assert breakers(database_url, "provider") == []
    (only,) = breakers(database_url, "tenant")
    assert only["trips"] == 1
    assert reserved(cells(database_url)) == {}


@only_sqlite
@pytest.mark.parametrize("command", [SERVE, (SCRIPTS / "gunicorn", "wsgi:app", "--threads", "6")])
def test_turns_never_take_the_threads_that_are_kept_for_everything_else(
    tmp_path: Path, database_url: str, api: MessagesApi, command: tuple[str | Path, ...]
) -> None:
    for name in ("wsgi.py", "gunicorn.conf.py"):
        shutil.copy(ROOT / name, tmp_path)
    add_people(database_url, ["ann", "bob"])
    threads = 6 if command is SERVE else 40  # which the option overrides
    with served(
        tmp_path, database_url, api, workers=1, threads=threads, threads_reserved=3, command=command
    ) as running:
        chats = [*seats(running.url, ["ann"], 3), *seats(running.url, ["bob"], 2)]
        with rush(api, [partial(seat.send, "hello") for seat in chats]) as crowd:
            assert (crowd.reached, len(crowd.refused)) == (3, 2)
            for answer in crowd.refused:
                body = refusal(answer, 503, "busy", "server")
                assert (body["limit"], body["used"]) == (3, 3)
            me = Visitor(running.url, 60, dict(chats[0].visitor.cookies))
            assert [me.get(page).status for page in ("/livez", "/chat", f"/chat/{chats[0].chat}")] == [
                200
            ] * 3
            assert Visitor(running.url).get("/login").status == 200
        assert [answer.status for answer in crowd.answered] == [200] * 3
        for seat in chats:  # who has an answer may be faster than the thread that gave it
            wait_for(lambda seat=seat: seat.send("again").status == 200)  # type: ignore[misc]


@only_postgresql
def test_while_postgresql_is_away_nothing_is_let_in_and_no_answer_is_told_that_was_not_kept(
    tmp_path: Path, database_url: str, api: MessagesApi
) -> None:
    add_people(database_url, ["ann"])
    name = make_url(database_url).database

    def take_away() -> None:
        administer(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        administer(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")

    def give_back() -> None:
        administer(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")

    with served(tmp_path, database_url, api) as running:
        chats = seats(running.url, ["ann"], 10)
        assert chats[0].send("hello").status == 200
        take_away()
        calls = len(api.requests)
        for accept in ("application/json", "text/event-stream"):
            for answer in at_once([partial(seat.send, "hello", accept) for seat in chats]):
                refusal(answer, 503, "storage-unavailable", None)
        assert Visitor(running.url).get("/livez").status == 200
        assert len(api.requests) == calls
        give_back()
        assert [seat.send("hello").status for seat in chats] == [200] * 10
        with rush(api, [partial(chats[0].send, "hello")]) as crowd:
            assert crowd.reached == 1
            take_away()
        refusal(crowd.answered[0], 503, "storage-unavailable", None)
        give_back()
        assert chats[1].send("hello").status == 200


@only_sqlite
def test_while_the_sqlite_tables_are_gone_nothing_is_let_in(
    tmp_path: Path, database_url: str, api: MessagesApi
) -> None:
    """The guardrails' own alone, and then the whole file, of which the workers know nothing yet."""
    add_people(database_url, ["ann"])
    path = Path(database_url.removeprefix("sqlite:///"))
    with served(tmp_path, database_url, api) as running:
        chats = seats(running.url, ["ann"], 5)
        assert chats[0].send("hello").status == 200
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("ALTER TABLE guardrail_cells RENAME TO gone")
            calls = len(api.requests)
            for answer in at_once([partial(seat.send, "hello") for seat in chats]):
                refusal(answer, 503, "storage-unavailable", None)
            assert len(api.requests) == calls
            assert chats[0].statuses() == ["completed"]
            connection.execute("ALTER TABLE gone RENAME TO guardrail_cells")
            assert [seat.send("hello").status for seat in chats] == [200] * 5
            with closing(sqlite3.connect(tmp_path / "kept")) as kept:
                connection.backup(kept)
        before, calls = running.children(), len(api.requests)
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        path.write_bytes(b"this is no database " * 500)
        for worker in before:  # they would go on with the file they have open
            os.kill(worker, signal.SIGKILL)
        wait_for(lambda: len(set(running.children()) - set(before)) == 2)
        for accept in ("application/json", "text/event-stream"):
            for seat in chats:
                refusal(seat.send("hello", accept), 503, "storage-unavailable", None)
        assert len(api.requests) == calls
        (tmp_path / "kept").replace(path)
        # Workers that have not seen the tables look for them every two seconds.
        wait_for(lambda: [seat.send("hello").status for seat in chats] == [200] * 5)
