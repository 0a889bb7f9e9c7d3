"""The table [tool.agentapp.audit] of pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.support.command import (
    SHARED,
    audit,
    configure,
    findings,
    reported,
    valid_sarif,
    write,
)

pytestmark = pytest.mark.usefixtures("here")


def test_paths_come_from_the_configuration_if_none_is_given(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, {"src/app.py": SHARED, "lib/b.py": SHARED, "other/c.py": SHARED})
    configure(here, 'paths = ["src", "lib/b.py"]')
    assert reported() == ["lib/b.py:5 ISO001", "src/app.py:5 ISO001"]
    assert reported("other") == ["other/c.py:5 ISO001"]
    monkeypatch.chdir(here / "src")
    assert reported() == [f"{here}/lib/b.py:5 ISO001", "app.py:5 ISO001"]


def test_the_configuration_is_the_one_nearest_above_the_first_path(here: Path) -> None:
    write(
        here,
        {
            "one/pyproject.toml": "[tool.agentapp.audit.severity]\nISO001 = 'note'\n",
            "one/src/app.py": SHARED,
            "two/app.py": SHARED,
        },
    )
    configure(here, "severity = {ISO001 = 'warning'}")
    assert {item["severity"] for item in findings("one/src/app.py", "two")} == {"note"}
    assert {item["severity"] for item in findings("one", "two")} == {"note"}
    assert {item["severity"] for item in findings("two", "one")} == {"warning"}


def test_the_configuration_of_the_current_directory_is_the_fallback(here: Path, tmp_path: Path) -> None:
    write(tmp_path, {"elsewhere/app.py": SHARED})
    configure(here, 'ignore = ["ISO001"]')
    audit("../elsewhere", exit_code=0)


@pytest.mark.parametrize("content", ["", "[project]\nname = 'x'\n", "[tool.agentapp]\nx = 1\n"])
def test_a_pyproject_without_the_table_changes_nothing(here: Path, content: str) -> None:
    write(here, {"app.py": SHARED, "pyproject.toml": content})
    assert reported(".") == ["app.py:5 ISO001"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("gen", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("gen/", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("src/gen", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("src/gen/**", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("**/gen/**", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("./src/*.py", ["app.py", "src/gen/deep/d.py"]),
        ("src/**/*.py", ["app.py"]),
        ("*_pb2.py", ["app.py", "src/a.py", "src/gen/deep/d.py"]),
        ("src/?.py", ["app.py", "src/b_pb2.py", "src/gen/deep/d.py"]),
        ("src/[ab]*", ["app.py", "src/gen/deep/d.py"]),
        ("**/d.py", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("a.py", ["app.py", "src/b_pb2.py", "src/gen/deep/d.py"]),
        ("rc", ["app.py", "src/a.py", "src/b_pb2.py", "src/gen/deep/d.py"]),
        ("[", ["app.py", "src/a.py", "src/b_pb2.py", "src/gen/deep/d.py"]),
    ],
)
def test_exclude(here: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, left: list[str]) -> None:
    write(here, dict.fromkeys(("app.py", "src/a.py", "src/b_pb2.py", "src/gen/deep/d.py"), SHARED))
    configure(here, f"exclude = ['{pattern}']\npaths = ['.']")
    assert [item["path"] for item in findings(".")] == left
    write(here, {"elsewhere/x.txt": ""})
    monkeypatch.chdir(here / "elsewhere")
    assert [item["path"] for item in findings()] == [f"{here}/{path}" for path in left]


def test_an_excluded_path_is_read_if_it_is_named(here: Path) -> None:
    write(here, {"gen/a.py": SHARED, "broken.py": "("})
    configure(here, "exclude = ['gen', 'broken.py']")
    audit(".", exit_code=0)
    assert reported("gen/a.py") == reported("gen") == ["gen/a.py:5 ISO001"]


TWO_RULES = f"{SHARED}\n\nCOUNT = 0\n\n\ndef count():\n    global COUNT\n    COUNT += 1\n"


@pytest.mark.parametrize(
    ("table", "codes"),
    [
        ("", ["ISO001", "ISO002"]),
        ("rules = ['ISO002']", ["ISO002"]),
        ("rules = ['ISO001', 'ISO002']\nignore = ['ISO002']", ["ISO001"]),
        ("rules = []", []),
        ("ignore = ['ISO001']", ["ISO002"]),
        ("severity = {ISO001 = 'off'}", ["ISO002"]),
        ("rules = ['ISO002']\nseverity = {ISO002 = 'off'}", []),
    ],
)
def test_which_rules_are_reported(here: Path, table: str, codes: list[str]) -> None:
    write(here, {"app.py": TWO_RULES})
    configure(here, table)
    assert [item["rule"] for item in findings(".")] == codes
    assert audit(".").exit_code == bool(codes)


@pytest.mark.parametrize("severity", ["error", "warning", "note"])
def test_severity(here: Path, severity: str) -> None:
    write(here, {"app.py": SHARED})
    configure(here, f"severity.ISO001 = '{severity}'")
    assert findings(".")[0]["severity"] == severity
    assert f"ISO001 {severity}: " in audit(".", exit_code=1).stdout
    (one,) = valid_sarif(audit(".", "--format", "sarif").stdout)["runs"][0]["results"]
    assert one["level"] == severity


@pytest.mark.parametrize("table", ["rules = ['ISO001']", "rules = []"])
def test_an_unreadable_file_is_reported_even_if_all_rules_are_off(here: Path, table: str) -> None:
    write(here, {"app.py": "("})
    configure(here, table)
    assert reported(".") == ["app.py:1 ISO099"]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("path = ['src']", "path: is not known; there are paths, exclude, rules, ignore, severity"),
        ("paths = 'src'", "paths: must be a list of texts"),
        ("paths = [1]", "paths: must be a list of texts"),
        ("paths = ['']", "paths: must be a list of texts"),
        ("exclude = {}", "exclude: must be a list of texts"),
        ("exclude = [['a']]", "exclude: must be a list of texts"),
        ("rules = 'ISO001'", "rules: must be a list of texts"),
        ("rules = ['ISO001', 'ISO017x']", "rules: there is no rule 'ISO017x'"),
        ("ignore = ['iso001']", "ignore: there is no rule 'iso001'"),
        ("ignore = true", "ignore: must be a list of texts"),
        ("ignore = ['ISO099']", "ignore: ISO099 cannot be turned off; exclude the file instead"),
        ("severity = 'error'", "severity: must be a table of rules"),
        ("severity = {X = 'error'}", "severity: there is no rule 'X'"),
        (
            "severity = {ISO001 = 'fatal'}",
            "severity.ISO001: must be one of error, warning, note, off; not 'fatal'",
        ),
        ("severity = {ISO001 = 1}", "severity.ISO001: must be one of error, warning, note, off; not 1"),
        ("severity = {ISO001 = []}", "severity.ISO001: must be one of error, warning, note, off; not []"),
        ("severity = {ISO099 = 'off'}", "severity.ISO099: cannot be turned off; exclude the file instead"),
    ],
)
def test_a_bad_configuration_gives_one_line_that_names_the_key(here: Path, table: str, problem: str) -> None:
    write(here, {"app.py": SHARED})
    configure(here, table)
    result = audit(".", exit_code=2)
    expected = f"agentapp: {here}/pyproject.toml: [tool.agentapp.audit] {problem}\n"
    assert (result.stdout, result.stderr) == ("", expected)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[tool", "pyproject.toml is not TOML: "),
        (b"\xff\xfe", "pyproject.toml is not TOML: "),
        (b"x = " + b"[" * 10_000, "pyproject.toml is not TOML: "),
        (b"tool = 1", "pyproject.toml: tool: must be a table\n"),
        (b"tool.agentapp = 1", "pyproject.toml: agentapp: must be a table\n"),
        (b"tool.agentapp.audit = []", "pyproject.toml: audit: must be a table\n"),
    ],
)
def test_a_bad_pyproject_gives_one_line(here: Path, content: bytes, problem: str) -> None:
    write(here, {"app.py": SHARED, "pyproject.toml": content})
    result = audit(".", exit_code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"agentapp: {here}/{problem}")
    assert result.stderr.count("\n") == 1


def test_configured_paths_that_do_not_exist_are_reported(here: Path) -> None:
    configure(here, 'paths = ["nowhere", "with\\u0000null"]')
    result = audit(exit_code=2)
    assert "nowhere:1: ISO099" in result.stdout
    assert result.stderr == "agentapp: 2 paths could not be read\n"
