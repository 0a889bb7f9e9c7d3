"""No call is free: `bench/survive.py` does the same, many more times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import charging_scenarios
from tests.support.databases import DATABASES, migrated_in
from tests.support.retrying_users import Found, Installation, installation

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(params=DATABASES)
def place(tmp_path: Path, request: pytest.FixtureRequest, sqlite_template: Path) -> Iterator[Installation]:
    with (
        migrated_in(tmp_path, request.param, sqlite_template) as url,
        installation(tmp_path, url, **charging_scenarios.SETTINGS) as running,
    ):
        yield running


def holds(found: Found) -> None:
    assert found.wrong == [], (found.wrong[:10], found.figures)


def test_an_answer_costs_what_was_asked_and_said_however_it_ends(place: Installation) -> None:
    holds(charging_scenarios.ends(place, 24, tolerance=0.4))


def test_the_answers_of_killed_workers_cost_what_was_asked_and_said(place: Installation) -> None:
    """How much of a short answer was stored depends on how busy the machine is. The bench says more of it."""
    holds(charging_scenarios.kills(place, 2, length=40, tolerance=1.0))
