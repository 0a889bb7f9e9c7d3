"""Telemetry: the seam that parts report through, its null twin, and violations behind it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from agentapp.errors import ForeignScope
from agentapp.isolation import Scope
from agentapp.telemetry import NullTelemetry, Telemetry, Violations
from agentapp.web.parts import Parts

METHODS = ("count", "observe", "gauge", "alert")


@pytest.mark.parametrize("kind", [NullTelemetry, Violations])
def test_every_kind_has_all_four_methods_with_the_same_arguments(kind: Any) -> None:
    for name in METHODS:
        assert inspect.signature(getattr(kind, name)) == inspect.signature(getattr(Telemetry, name))
    telemetry: Telemetry = kind()
    telemetry.count("turns_total", status="completed")
    telemetry.observe("turn_seconds", 0.1)
    telemetry.gauge("live", 3, kind="turns")


def test_alerts_are_counted_by_kind_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    violations = Violations()
    assert violations.counts() == {}
    violations.alert("left-bound", "request r was still bound")
    violations.alert("left-bound", "request s was still bound")
    violations.count("turns_total")
    assert violations.counts() == {"left-bound": 2}
    assert "isolation violation (left-bound): request s was still bound" in caplog.text


@pytest.mark.violates
def test_a_scope_left_bound_and_a_foreign_scope_are_alerts(make_app: Callable[..., Flask]) -> None:
    parts: Parts = make_app().extensions["agentapp"]
    scope = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
    parts.binder.bound(scope).__enter__()
    parts.binder.sweep()
    parts.turns.kit.report_foreign_scope(ForeignScope("triage", scope, "another"))
    assert parts.telemetry.counts() == {"left-bound": 1, "foreign-scope": 1}
