"""The report in each format: JSON, SARIF, GitHub annotations and text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agentapp import __version__
from agentapp.audit.findings import Finding
from agentapp.audit.formats import as_github, as_text
from agentapp.audit.report import Report
from agentapp.audit.rules import RULES
from agentapp.audit.sarif import as_sarif
from tests.audit.support.command import (
    CLEAN,
    SHARED,
    audit,
    reported,
    summary,
    valid_sarif,
    write,
)

pytestmark = pytest.mark.usefixtures("here")


def test_json(here: Path) -> None:
    write(here, {"app.py": SHARED})
    assert json.loads(audit(".", "--format", "json", exit_code=1).stdout) == [
        {
            "path": "app.py",
            "line": 5,
            "rule": "ISO001",
            "severity": "error",
            "message": "`HISTORY`, from app.py:1, is changed by `chat`",
        }
    ]


def test_json_of_nothing_is_an_empty_list(here: Path) -> None:
    write(here, {"app.py": CLEAN})
    assert audit(".", "--format", "json", exit_code=0).stdout == "[]\n"


def test_findings_are_in_order(here: Path) -> None:
    write(here, {"b.py": SHARED, "a.py": SHARED + SHARED.replace("HISTORY", "OTHER"), "c/a.py": SHARED})
    assert reported("c", "b.py", "a.py") == [
        "a.py:5 ISO001",
        "a.py:10 ISO001",
        "b.py:5 ISO001",
        "c/a.py:5 ISO001",
    ]


# -- SARIF


def test_the_schema_rejects_invalid_sarif() -> None:
    with pytest.raises(jsonschema.ValidationError):
        valid_sarif('{"version": "2.1.0", "runs": [{"tool": {"driver": {}}}]}')
    with pytest.raises(jsonschema.ValidationError):
        valid_sarif('{"version": "2.0.0", "runs": []}')


def test_sarif_follows_the_official_schema(here: Path) -> None:
    write(here, {"a b/äpp.py": SHARED, "broken.py": "(", "clean.py": "x = 1  # agentapp: shared ok - x\n"})
    log = valid_sarif(audit(".", "--format", "sarif", exit_code=2).stdout)
    (one,) = log["runs"]
    driver = one["tool"]["driver"]
    assert (log["version"], driver["semanticVersion"]) == ("2.1.0", __version__)
    assert [rule["id"] for rule in driver["rules"]] == list(RULES)
    for rule in driver["rules"]:
        known = RULES[rule["id"]]
        assert rule["name"].isalnum()
        assert rule["shortDescription"]["text"].lower() == f"{known.title}.".lower()
        assert rule["fullDescription"]["text"] == known.why
        assert known.fix in rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] == known.severity
    assert one["invocations"] == [{"executionSuccessful": False}]
    first, *_ = one["results"]
    assert (first["ruleId"], first["level"]) == ("ISO001", "error")
    assert driver["rules"][first["ruleIndex"]]["id"] == "ISO001"
    assert first["message"]["text"] == "`HISTORY`, from a b/äpp.py:1, is changed by `chat`"
    assert first["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "a%20b/%C3%A4pp.py", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 5},
            }
        }
    ]
    assert [result["ruleId"] for result in one["results"]] == ["ISO001", "ISO099", "ISO091"]


def test_sarif_of_nothing(here: Path) -> None:
    write(here, {"app.py": CLEAN})
    (one,) = valid_sarif(audit(".", "--format", "sarif", exit_code=0).stdout)["runs"]
    assert (one["results"], one["invocations"]) == ([], [{"executionSuccessful": True}])


def test_sarif_has_an_absolute_uri_for_a_file_elsewhere(here: Path, tmp_path: Path) -> None:
    write(tmp_path, {"else where/app.py": SHARED})
    (one,) = valid_sarif(audit("../else where", "--format", "sarif").stdout)["runs"][0]["results"]
    where = one["locations"][0]["physicalLocation"]["artifactLocation"]
    assert where == {"uri": f"file://{tmp_path}/else%20where/app.py"}


def fingerprints(*args: str) -> list[str]:
    results = valid_sarif(audit(*args, "--format", "sarif").stdout)["runs"][0]["results"]
    return [value for result in results for value in result["partialFingerprints"].values()]


def test_fingerprints_stay_when_lines_move_and_differ_otherwise(here: Path) -> None:
    write(here, {"app.py": SHARED, "b.py": SHARED})
    before = fingerprints(".")
    write(here, {"app.py": f"# moved\n{SHARED}", "b.py": f"\n\n{SHARED}"})
    assert fingerprints(".") == before
    assert len(set(before)) == 2


def test_equal_results_have_different_fingerprints() -> None:
    twins = tuple(Finding("app.py", line, "ISO001", "error", "the same") for line in (1, 2))
    text = as_sarif(Report(1, twins, 0, 0, (), {}), version="1.0.0")
    first, second = valid_sarif(text)["runs"][0]["results"]
    assert first["partialFingerprints"] != second["partialFingerprints"]


# -- GitHub


def test_github(here: Path) -> None:
    write(here, {"a,b:c%/app.py": SHARED})
    assert audit(".", "--format", "github", exit_code=1).stdout == (
        "::error file=a%2Cb%3Ac%25/app.py,line=5,title=ISO001 a module-level object is changed"
        "::`HISTORY`, from a,b:c%25/app.py:1, is changed by `chat`\n"
    )


def test_github_of_nothing_is_nothing(here: Path) -> None:
    write(here, {"app.py": CLEAN})
    assert audit(".", "--format", "github", exit_code=0).stdout == ""


@pytest.mark.parametrize(
    ("severity", "level"), [("error", "error"), ("warning", "warning"), ("note", "notice")]
)
def test_github_levels_and_line_ends(severity: Any, level: str) -> None:
    finding = Finding("a\r\nb.py", 3, "ISO007", severity, "one\ntwo\r50%, and: so on")
    assert as_github(Report(1, (finding,), 0, 0, (), {})) == (
        f"::{level} file=a%0D%0Ab.py,line=3,title=ISO007 a cache that depends on the caller%2C "
        "or whose results are changed::one%0Atwo%0D50%25, and: so on"
    )


# -- text


def test_text(here: Path) -> None:
    write(here, {"app.py": SHARED.replace("\n\n\n", "\n\n")})
    assert audit(".", exit_code=1).stdout == (
        "app.py:4: ISO001 error: a module-level object is changed\n"
        "  `HISTORY`, from app.py:1, is changed by `chat`\n"
        "    3 | def chat(text):\n"
        "  > 4 |     HISTORY.append(text)\n"
        "    5 |\n"
        f"  fix: {RULES['ISO001'].fix}\n"
        "\n"
        "1 file, 1 finding, 0 suppressed\n"
    )


def test_the_first_and_the_last_line_have_only_one_neighbour() -> None:
    def excerpt(line: int) -> list[str]:
        finding = Finding("a.py", line, "ISO001", "error", "message")
        text = as_text(Report(1, (finding,), 0, 0, (), {"a.py": b"one\n\ttwo\nthree"}), coloured=False)
        return [line for line in text.splitlines() if "|" in line]

    assert excerpt(1) == ["  > 1 | one", "    2 |     two"]
    assert excerpt(3) == ["    2 |     two", "  > 3 | three"]
    assert excerpt(9) == []


def test_source_cannot_act_on_the_terminal(here: Path) -> None:
    evil = "HISTORY.append(text)  # \x1b[2J\x9b31m\x07\u202e\x0c"
    write(here, {"app.py": SHARED.replace("HISTORY.append(text)", evil), "\x1b[31m.py": SHARED})
    shown = audit(".", exit_code=1).stdout
    assert "\\x1b[2J\\x9b31m\\x07\\u202e\\x0c" in shown
    assert "\\x1b[31m.py:5: ISO001" in shown
    assert not set(shown) & set("\x1b\x9b\x07\u202e\x0c")


def test_very_long_lines_are_cut(here: Path) -> None:
    write(here, {"app.py": SHARED.rstrip() + "; x = '" + "x" * 100_000 + "'\n"})
    assert max(map(len, audit(".", exit_code=1).stdout.splitlines())) < 300


def test_text_shows_the_number_of_suppressed_findings(here: Path) -> None:
    write(
        here,
        {"app.py": SHARED, "b.py": SHARED.replace("[]", "[]  # agentapp: shared ok - a log"), "c.py": ""},
    )
    assert summary(audit(".", exit_code=1).stdout) == (3, 1, 1)
