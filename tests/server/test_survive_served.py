"""What the real server survives with two workers: `bench/survive.py` does the same, many more times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support import client_scenarios, shutdown_scenarios
from tests.support.databases import DATABASES, migrated_in
from tests.support.retrying_users import CountingModel, Found, Installation, installation, words
from tests.support.server import free_port

DEADLINE, GRACE = 4.0, 3.0
WORKERS_END = "--max-requests 25 --max-requests-jitter 15"

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module", params=DATABASES)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, kind: str, sqlite_template: Path
) -> Iterator[Installation]:
    """One server for all that readers and models do."""
    directory = tmp_path_factory.mktemp("place")
    with (
        migrated_in(directory, kind, sqlite_template) as url,
        installation(directory, url, first_token_deadline=DEADLINE) as running,
    ):
        yield running


@pytest.fixture
def url(kind: str, tmp_path: Path, sqlite_template: Path) -> Iterator[str]:
    """For servers that end."""
    with migrated_in(tmp_path, kind, sqlite_template) as found:
        yield found


@pytest.fixture(scope="module")
def share(kind: str) -> float:
    """What was done many times on the first database is done less often on the second."""
    return 1.0 if kind == "sqlite" else 0.5


def holds(found: Found) -> None:
    assert found.wrong == [], found.wrong[:10]


def test_turns_with_a_silent_model_end_in_time_and_nobody_else_notices(place: Installation) -> None:
    holds(client_scenarios.silent(place, 12, DEADLINE))


def test_a_stream_taken_up_again_anywhere_and_at_any_time_is_the_whole_answer_once(
    place: Installation, share: float
) -> None:
    holds(client_scenarios.resumes(place, int(20 * share)))


def test_the_same_message_sent_many_times_at_once_is_one_turn_and_one_call(
    place: Installation, share: float
) -> None:
    holds(client_scenarios.doubles(place, int(8 * share), at_a_time=2))


def test_stop_ends_a_silent_turn_from_either_worker_and_keeps_what_was_said(place: Installation) -> None:
    holds(client_scenarios.stops(place, 10))


def test_forty_slow_streams_at_once_are_all_exact(place: Installation) -> None:
    holds(client_scenarios.streams(place, 40, words(30, "[[slow:0.05]]")))


def test_a_user_who_signs_out_is_told_no_more_and_everybody_else_is(place: Installation) -> None:
    holds(client_scenarios.logins(place))


def test_readers_who_leave_or_never_read_hold_nothing_up_and_lose_nothing(place: Installation) -> None:
    holds(client_scenarios.disconnects(place, 8))


def test_workers_killed_or_replaced_at_random_moments_lose_nothing_and_double_nothing(
    tmp_path: Path, url: str, share: float
) -> None:
    """If they are replaced, nobody notices."""
    with installation(tmp_path, url, demo=True, gunicorn=WORKERS_END) as running:
        if share == 1:
            holds(shutdown_scenarios.replacements(running, hups=1, recycled=1, sessions=6))
        holds(shutdown_scenarios.kills(running, 3 if share == 1 else 2, sessions=6))


def test_a_server_told_to_stop_does_so_in_time_and_leaves_nothing_running(
    tmp_path: Path, url: str, share: float
) -> None:
    serve = partial(
        installation, tmp_path, url, demo=True, port=free_port(), grace=GRACE, model=CountingModel()
    )
    holds(shutdown_scenarios.terms(serve, 1, GRACE, sessions=8))
