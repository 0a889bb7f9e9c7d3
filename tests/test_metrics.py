"""The metrics themselves: of several workers, of bounded number, by the minute; and their documentation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from prometheus_client import values

from agentapp.config import Settings
from agentapp.telemetry.catalogue import METRICS, PREFIX, REDIS_UP, VIOLATIONS
from agentapp.telemetry.jobs import StoreCounts, StoreViolations
from agentapp.telemetry.measurements import Measurements, isolation_score
from agentapp.telemetry.metrics import Metrics
from agentapp.telemetry.minutes import ADDED_UP_AT, MAX_PENDING, MinuteCounts, MinuteKey
from agentapp.telemetry.violations import MAX_PENDING as MAX_VIOLATIONS
from agentapp.telemetry.violations import Violations
from agentapp.web.parts import Parts
from tests.support.metrics import counted, samples
from tests.support.users import person

ROOT = Path(__file__).parent.parent
FROM_DATABASE = {"isolation_score": (), "breakers_open": ("scope",), "alerts_open": ("kind",)}


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Metrics]:
    """A worker in this place. What prometheus-client sets for the whole process is put back."""
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))

    def joined(place: int) -> Metrics:
        metrics = Metrics()
        metrics.join(tmp_path, place)
        return metrics

    return joined


def turns(metrics: Metrics, count: int) -> None:
    metrics.count("turns_total", count, {"status": "completed"})
    metrics.observe("turn_seconds", 0.3, {})
    metrics.gauge("live", count, {"kind": "turns"})


def told(metrics: Metrics) -> dict[str, float]:
    found = samples(metrics.exposition().decode())
    return {
        name: found.get(name, 0.0) for name in ("turns_total completed", "turn_seconds_count", "live turns")
    }


def test_workers_are_added_up_whichever_is_asked_and_one_goes_on_where_a_dead_one_stopped(
    join: Callable[[int], Metrics], tmp_path: Path
) -> None:
    first, second = join(0), join(1)
    turns(first, 3)
    turns(second, 2)
    together = {"turns_total completed": 5, "turn_seconds_count": 2, "live turns": 5}
    assert told(first) == told(second) == together
    files = sorted(tmp_path.iterdir())
    after = join(0)  # the first was killed
    assert told(second) == {**together, "live turns": 2}
    turns(after, 1)
    assert told(second) == {"turns_total completed": 6, "turn_seconds_count": 3, "live turns": 3}
    assert sorted(tmp_path.iterdir()) == files


def test_a_value_that_is_in_no_list_is_counted_as_another(parts: Parts) -> None:
    parts.telemetry.count("refusals_total", code="new-code", scope="session")
    parts.telemetry.count("refusals_total", code="newer-code", scope="session")
    assert counted(parts, "refusals_total") == {"refusals_total other session": 2}


def series(parts: Parts) -> set[str]:
    lines = parts.telemetry.metrics.exposition().decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def test_the_number_of_series_does_not_depend_on_the_number_of_users(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    app = make_app(wanted=replace(settings, provider_breaker_users=100))
    parts: Parts = app.extensions["agentapp"]

    def use(name: str, tenant: str) -> None:
        user = person(app, name, tenant=tenant)
        chat = user.new_chat()
        user.ask(chat, "hello")
        assert [user.send(chat, "/fail").status_code for _ in range(4)] == [502, 502, 502, 503]

    use("ann", "one")
    before = series(parts)
    for n in range(4):
        use(f"user-{n}", f"tenant-{n}")
    assert series(parts) == before
    text = "\n".join(before)
    assert not re.search("user-|tenant-", text)


def test_every_write_transaction_tells_how_long_it_waited(app: Flask, parts: Parts) -> None:
    person(app, "ann")

    def waits() -> float:
        return counted(parts, "writer_wait_seconds_count")["writer_wait_seconds_count"]

    parts.turns.close()  # the heartbeat writes too
    before = waits()
    parts.accounts.disable("ann")
    assert waits() == before + 1


def test_minutes_are_taken_once_and_put_back_if_they_could_not_be_stored() -> None:
    minutes = MinuteCounts(lambda: 120.0)
    for _ in range(3):
        minutes.add("turns", 1, "t", "completed")
    minutes.add("turns", 2)
    key, nobody = MinuteKey("turns", "t", 2, "completed"), MinuteKey("turns", "", 2, "")
    assert minutes.take() == {key: 3, nobody: 2}
    assert minutes.total("turns") == 5, "they are not known to be stored"
    minutes.put_back()
    minutes.add("turns", 1, "t", "completed")
    assert minutes.take() == {key: 4, nobody: 2}
    assert minutes.stored() == {"turns": 6}
    assert (minutes.take(), minutes.total("turns")) == ({}, 0)


def test_what_waits_to_be_stored_is_bounded_and_no_count_is_lost() -> None:
    minutes = MinuteCounts(lambda: 0.0)
    many = MAX_PENDING + 2 * ADDED_UP_AT
    for n in range(many):
        minutes.add("turns", 1, f"tenant-{n}")
    assert len(minutes._events) < ADDED_UP_AT
    assert len(minutes.take()) <= MAX_PENDING + 1
    assert minutes.total("turns") == many


class Away:
    def add(self, given: Any) -> None:
        raise ConnectionError("the database is away")


class Kept(list[Any]):
    def add(self, given: Any) -> None:
        self.append(given)


def test_what_could_not_be_stored_is_stored_the_next_time() -> None:
    telemetry, kept, found = Measurements(lambda: 0.0), Kept(), Kept()
    telemetry.violation("foreign-event", "planted", "r", tenant_id="t")
    with pytest.raises(ConnectionError):
        StoreCounts(telemetry, Away()).run(0.0)
    with pytest.raises(ConnectionError):
        StoreViolations(telemetry, Away()).run(0.0)
    assert telemetry.unstored() == (0, 1)
    for _ in range(2):
        StoreCounts(telemetry, kept).run(0.0)
        StoreViolations(telemetry, found).run(0.0)
    assert found == [(("foreign-event", "r", "t"),)]
    assert [sum(n for key, n in given.items() if key.name == "isolation_violating") for given in kept] == [1]
    assert telemetry.unstored() == (0, 0)


def test_violations_that_wait_for_the_audit_log_are_bounded() -> None:
    violations = Violations()
    for n in range(MAX_VIOLATIONS + 5):
        violations.violation("foreign-event", "planted", f"r-{n}")
    taken = violations.take_found()
    assert (len(taken), taken[-1].request_id) == (MAX_VIOLATIONS, f"r-{MAX_VIOLATIONS + 4}")
    assert violations.counts() == {"foreign-event": MAX_VIOLATIONS + 5}


def test_the_score_is_unknown_1_or_less() -> None:
    assert isolation_score(0, 0) is None
    assert isolation_score(10, 0) == 1
    assert isolation_score(10, 1) == 0.9
    assert isolation_score(0, 1) == 0


def test_the_documentation_has_every_metric_with_its_labels() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    rows = re.findall(rf"^\| `{PREFIX}(\w+)(?:\{{(\w+(?:, \w+)*)\}})?` \|", page, re.M)
    documented = {name: tuple(filter(None, labels.split(", "))) for name, labels in rows}
    metrics = {metric.name: tuple(metric.labels) for metric in METRICS}
    assert documented == {**metrics, **FROM_DATABASE, REDIS_UP.name: ()}


def test_the_documentation_has_every_kind_of_violation() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    table = page.partition("## Isolation, measured")[2].partition("## Failure containment")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.M)) == set(VIOLATIONS)
