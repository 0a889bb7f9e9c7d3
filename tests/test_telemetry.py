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

from agentapp.errors import Busy, ForeignScope
from agentapp.isolation import Scope
from agentapp.telemetry import NullTelemetry, Telemetry, Violations
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from tests.support.turns import someone

METHODS = ("count", "observe", "gauge", "check", "violation", "alert")


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
    assert "isolation violation (left-bound) in request s: it was still bound" in caplog.text


@pytest.mark.violates
def test_a_scope_left_bound_and_a_foreign_scope_are_violations(make_app: Callable[..., Flask]) -> None:
    parts: Parts = make_app().extensions["agentapp"]
    scope = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
    parts.binder.bound(scope).__enter__()
    parts.binder.sweep()
    parts.turns.kit.report_foreign_scope(ForeignScope("triage", scope, "another"))
    assert parts.telemetry.counts() == {"left-bound": 1, "foreign-scope": 1}


class Recorder(NullTelemetry):
    def __init__(self) -> None:
        self.counted: Counter[tuple[Any, ...]] = Counter()
        self.observed: list[tuple[str, float]] = []

    def count(self, name: str, amount: int = 1, /, **labels: str) -> None:
        self.counted[(name, *sorted(labels.items()))] += amount

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        assert value >= 0
        self.observed.append((name, value))


def test_turns_and_refusals_are_reported_to_whatever_was_handed_in(parts: Parts) -> None:
    recorder = Recorder()
    turns = replace(parts.turns, kit=replace(parts.turns.kit, telemetry=recorder))
    uma = someone(parts, "uma")
    with parts.binder.bound(uma):
        for message in ("hello", "/fail"):
            stream = turns.send(uma, NewMessage(message))
            stream.finish()
            stream.close()
    turns.slots.resize(1, 0)
    slot = turns.slots.take_for_turn("somebody", "elsewhere")
    with pytest.raises(Busy):
        turns.send(uma, NewMessage("no room"))
    slot.release()
    assert recorder.counted == {
        ("turns_total", ("status", "completed")): 1,
        ("turns_total", ("status", "failed")): 1,
        ("refusals_total", ("code", "busy"), ("scope", "server")): 1,
    }


def test_the_heartbeat_reports_how_late_a_beat_has_ended(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for heartbeat in parts.turns.heartbeat.threads:
        recorder = Recorder()
        monkeypatch.setattr(heartbeat, "_telemetry", recorder)
        heartbeat.beat(due=time.monotonic() - 60)
        ((name, late),) = recorder.observed
        assert (name, late >= 60) == ("heartbeat_lag_seconds", True)
