"""Odd requests of all kinds at the real server: what must hold of every answer. `bench.fuzz` sends more."""

from __future__ import annotations

from pathlib import Path

from agentapp.config import Settings
from tests.support.databases import migrated_in
from tests.support.fuzzing import RATES_OFF, fuzz
from tests.support.rounds import ROUNDS
from tests.support.server import server

SEED = 4


def test_odd_requests_get_an_answer_that_is_no_server_error_and_nobody_elses(
    tmp_path: Path, sqlite_template: Path, settings: Settings
) -> None:
    with migrated_in(tmp_path, "sqlite", sqlite_template) as database:
        env = {**RATES_OFF, "AGENTAPP_DEMO_DELAY": "0", "AGENTAPP_DATABASE_URL": database}
        with server(tmp_path, workers=2, threads=64, env=env) as running:
            fuzzed, found = fuzz(running, database, settings, requests=1500 * ROUNDS, seed=SEED)
    assert found.wrong == []
    assert not fuzzed.promised
    assert fuzzed.own_marks > 5, "the requests reached nothing that could have been shown to others"
    assert {status for _, status in fuzzed.statuses} >= {
        "200",
        "303",
        "400",
        "401",
        "403",
        "404",
        "405",
        "413",
    }
