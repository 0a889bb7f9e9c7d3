"""The rules and the dashboard that are shipped name only metrics, labels and values that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from flask import Flask

from agentapp.storage.clock import MOST_APART_SECONDS
from agentapp.telemetry.alerts import SEVERITIES
from agentapp.telemetry.catalogue import READ_FROM_DATABASE
from agentapp.telemetry.conditions import LATE_SECONDS
from agentapp.telemetry.measurements import SLOW_RESET_SECONDS
from tests.support.documentation import ROOT
from tests.support.prometheus import KNOWN, unknown_in, unknown_labels
from tests.support.users import Person

RULES_FILE = ROOT / "deploy/prometheus/agentapp.rules.yml"
RULES_TEST = Path(__file__).parent / "agentapp.rules.test.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/agentapp.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TARGETS = [target for panel in PANELS for target in panel.get("targets", ())]
DOCUMENTATION = (ROOT / "docs/observability.md").read_text()

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool on this machine (Debian: prometheus)"
)


@pytest.mark.parametrize(
    "query",
    [
        "sum(rate(agentapp_turns_total[5m]))",
        'sum by (status) (rate(agentapp_turns_total{status=~"failed|stopped", job="x"}[5m]))',
        "histogram_quantile(0.5, sum by (le) (rate(agentapp_turn_seconds_bucket[$__rate_interval])))",
        'agentapp_agent_reset_seconds_bucket{le="5.0"} > 0 or absent(agentapp_live)',
    ],
)
def test_a_query_of_what_there_is_has_no_fault(query: str) -> None:
    assert unknown_in(query) == []


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("rate(agentapp_turn_total[5m])", "agentapp_turn_total"),
        ("agentap_turns_total", "agentap_turns_total"),
        ("agentapp_turn_seconds", "agentapp_turn_seconds"),
        ("agentapp_live_bucket", "agentapp_live_bucket"),
        ('agentapp_turns_total{state="failed"}', "agentapp_turns_total{state}"),
        ('agentapp_turns_total{status="fail"}', 'agentapp_turns_total{status="fail"}'),
        ('agentapp_turns_total{status!~"failed|lost"}', 'agentapp_turns_total{status="lost"}'),
        ('agentapp_turn_seconds_bucket{le="7.0"}', 'agentapp_turn_seconds_bucket{le="7.0"}'),
        ("agentapp_turns_total{status='failed'}", "agentapp_turns_total{status='failed'}"),
        ("sum by (kind) (agentapp_turns_total)", "kind"),
        ("sums(agentapp_turns_total)", "sums"),
    ],
)
def test_a_query_of_what_there_is_not_is_found_out(query: str, fault: str) -> None:
    assert unknown_in(query) == [fault]


def test_the_metrics_that_queries_may_name_are_those_that_a_server_shows(app: Flask, ann: Person) -> None:
    ann.ask(ann.new_chat(), "hello")
    lines = app.test_client().get("/metrics").text.splitlines()
    shown = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in KNOWN}
    assert families == {name for name in shown if not name.endswith("_created")}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_names_only_what_there_is(rule: dict[str, Any]) -> None:
    assert unknown_in(rule["expr"]) == []
    for text in rule["annotations"].values():
        assert unknown_labels(text.replace("$labels.", "").replace("$value", ""), rule["expr"]) == []


def test_every_kind_of_alert_has_a_rule_of_the_same_severity() -> None:
    of = {rule["labels"]["condition"]: rule["labels"]["severity"] for rule in RULES}
    assert of == {**SEVERITIES, "no-metrics": "critical"}


def test_every_kind_of_alert_is_documented_with_its_severity() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (critical|error|warning) \|", DOCUMENTATION, re.M)
    assert dict(rows) == SEVERITIES


def test_a_rule_has_the_same_limit_as_the_server() -> None:
    queries = {rule["labels"]["condition"]: rule["expr"] for rule in RULES}
    assert f'le="{SLOW_RESET_SECONDS}"' in queries["reset-slow"]
    assert f"> {LATE_SECONDS:g}" in queries["heartbeat-late"]
    assert f"> {MOST_APART_SECONDS:g}" in queries["clock-wrong"]


@promtool
@pytest.mark.parametrize("command", [("check", "rules", RULES_FILE), ("test", "rules", RULES_TEST)])
def test_promtool_finds_no_fault_and_the_rules_fire_when_they_should(command: tuple[Any, ...]) -> None:
    done = subprocess.run(["promtool", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_seen_to_fire() -> None:
    cases = [
        case for test in yaml.safe_load(RULES_TEST.read_text())["tests"] for case in test["promql_expr_test"]
    ]
    fired = re.findall(r'alertname="(\w+)",alertstate="firing"', json.dumps(cases).replace("\\", ""))
    assert set(fired) == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"][:40])
def test_the_dashboard_names_only_what_there_is(target: dict[str, Any]) -> None:
    assert unknown_in(target["expr"]) == []
    assert unknown_labels(target["legendFormat"], target["expr"]) == []


def test_the_dashboard_imports_as_it_is() -> None:
    """It asks for nothing: the source of the data is chosen on the page, and no panel lies on another."""
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    assert "__inputs" not in DASHBOARD
    assert "id" not in DASHBOARD
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    for each in (*(panel for panel in PANELS if panel["type"] != "row"), *TARGETS):
        assert each["datasource"] == {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
    taken = [
        (x, y)
        for panel in PANELS
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def test_the_dashboard_shows_all_that_an_operator_asks_for() -> None:
    shown = " ".join(target["expr"] for target in TARGETS)
    for family in {re.sub(r"_(bucket|count|sum)$", "", name) for name in KNOWN} - {"agentapp_alerts_total"}:
        assert family in shown, family


def test_what_is_read_from_the_database_is_told_by_every_host_and_never_summed_over_them() -> None:
    names = [metric.name for metric in READ_FROM_DATABASE]
    for query in (*(rule["expr"] for rule in RULES), *(target["expr"] for target in TARGETS)):
        for name in names:
            assert not re.search(rf"sum(?: by \([^)]*\))? ?\(agentapp_{name}", query), query
