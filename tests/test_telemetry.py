"""Telemetry: the seam that parts report through, its null twin, and violations behind it."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from agentapp.errors import ForeignScope
from agentapp.isolation import Scope
from agentapp.telemetry import NullTelemetry, Telemetry, Violations
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.support.turns import someone

METHODS = ("count", "observe", "gauge", "check", "request_checked", "violation", "alert")


@pytest.mark.parametrize("kind", [NullTelemetry, Violations])
def test_every_kind_has_all_methods_with_the_same_arguments(kind: Any) -> None:
    for name in METHODS:
        assert inspect.signature(getattr(kind, name)) == inspect.signature(getattr(Telemetry, name))
    telemetry: Telemetry = kind()
    telemetry.count("turns_total", status="completed")
    telemetry.observe("turn_seconds", 0.1)
    telemetry.gauge("live", 3, kind="turns")


def test_violations_are_counted_by_kind_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    violations = Violations()
    assert violations.counts() == {}
    violations.violation("left-bound", "it was still bound", "r")
    violations.violation("left-bound", "it was still bound", "s")
    violations.count("turns_total")
    assert violations.counts() == {"left-bound": 2}
    assert "isolation violation (left-bound): it was still bound" in caplog.text


@pytest.mark.violates
def test_a_scope_left_bound_and_a_foreign_scope_are_violations(make_app: Callable[..., Flask]) -> None:
    parts: Parts = make_app().extensions["agentapp"]
    scope = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
    parts.binder.bound(scope).__enter__()
    parts.binder.sweep()
    parts.turns.kit.report(ForeignScope("triage", scope, "another"))
    assert parts.telemetry.counts() == {"left-bound": 1, "foreign-scope": 1}


class Recorder(NullTelemetry):
    def __init__(self) -> None:
        self.counted: Counter[Any] = Counter()
        self.gauges: list[tuple[str, str, float]] = []

    def count(self, name: str, amount: float = 1, /, *, tenant_id: str = "", **labels: str) -> None:
        self.counted[(name, *sorted(labels.items()))] += amount

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        self.gauges.append((name, labels["thread"], value))


def test_turns_are_reported_to_whatever_was_handed_in(parts: Parts) -> None:
    recorder = Recorder()
    turns = replace(parts.turns, kit=replace(parts.turns.kit, telemetry=recorder))
    uma = someone(parts, "uma")
    with parts.binder.bound(uma):
        for message in ("hello", "/fail"):
            stream = turns.send(uma, NewMessage(message))
            stream.finish()
            stream.close()
    of_turns = {key: n for key, n in recorder.counted.items() if key[0] in ("turns_total", "failures_total")}
    assert of_turns == {
        ("turns_total", ("status", "completed")): 1,
        ("turns_total", ("status", "failed")): 1,
        ("failures_total",): 1,
    }


def test_the_heartbeat_reports_how_late_a_beat_has_ended(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for heartbeat in parts.turns.heartbeat.threads:
        recorder = Recorder()
        monkeypatch.setattr(heartbeat, "_telemetry", recorder)
        heartbeat.beat(due=time.monotonic() - 60)
        ((name, thread, late),) = recorder.gauges
        assert (name, thread, late >= 60) == ("heartbeat_lag_seconds", heartbeat.name, True)
