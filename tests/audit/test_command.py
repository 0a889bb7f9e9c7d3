"""`agentapp audit` as a command: exit codes, streams, terminals, --explain and the pre-commit hook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentapp.audit.judge import Hazard
from agentapp.audit.rules import RULES
from tests.audit.support.command import (
    CLEAN,
    SHARED,
    audit,
    configure,
    findings,
    reported,
    run_on_terminal,
    summary,
    write,
)
from tests.support.server import SCRIPTS, run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("here")


def test_clean_code_gives_exit_code_0(here: Path) -> None:
    write(here, {"app.py": CLEAN})
    result = audit(".", exit_code=0)
    assert (result.stdout, result.stderr) == ("1 file, 0 findings, 0 suppressed\n", "")


def test_findings_give_exit_code_1_and_go_to_stdout(here: Path) -> None:
    write(here, {"app.py": SHARED})
    result = audit(".", exit_code=1)
    assert "app.py:5: ISO001" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_a_missing_path_gives_exit_code_2_and_the_others_are_still_read(here: Path, form: str) -> None:
    write(here, {"app.py": SHARED})
    result = audit("nowhere/x.py", "app.py", "--format", form, exit_code=2)
    for what in ("nowhere/x.py", "ISO099", "does not exist", "ISO001"):
        assert what in result.stdout
    assert result.stderr == "agentapp: 1 path could not be read\n"


def test_a_syntax_error_is_reported_with_its_line_and_exit_code_2(here: Path) -> None:
    write(here, {"app.py": SHARED, "broken.py": "x = 1\n\ndef broken(:\n    pass\n"})
    assert reported(".") == ["app.py:5 ISO001", "broken.py:3 ISO099"]
    result = audit(".", exit_code=2)
    assert "is not Python: invalid syntax" in result.stdout
    assert "  > 3 | def broken(:" in result.stdout


@pytest.mark.parametrize(
    "source",
    [
        b"x = '\xe9'\n",
        b"\x00",
        b"# coding: nonsense\n",
        b"# coding: hex\n",
        b"\xef\xbb\xbf# coding: latin-1\n",
        b"x = " + b"-" * 200_000 + b"1\n",
        b"(" * 5_000 + b")" * 5_000,
        b"x" + b".y" * 20_000,
        b"x = " + b"9" * 5_000,
        b"if x:\nprint()\n",
        b"def f():\n\treturn 1\n        return 2\n",
    ],
    ids=lambda source: repr(source[:24]),
)
def test_every_file_that_cannot_be_parsed_is_reported_without_a_traceback(here: Path, source: bytes) -> None:
    write(here, {"bad.py": source, "good.py": SHARED})
    (bad, good) = findings(".")
    assert (bad["path"], bad["rule"], good["rule"]) == ("bad.py", "ISO099", "ISO001")
    assert bad["line"] >= 1
    assert audit(".").exit_code == 2


def test_a_program_with_too_deep_names_gives_exit_code_2(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hazards(modules: Any) -> list[Hazard]:
        return hazards(modules)

    write(here, {"app.py": SHARED})
    monkeypatch.setattr("agentapp.audit.report.hazards_in", hazards)
    result = audit(".", exit_code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("agentapp: the names of this program lead too far")


def test_files_with_strange_escape_sequences_are_read_without_a_warning(here: Path) -> None:
    write(here, {"app.py": SHARED + 'PATTERN = "\\d"\n'})
    assert reported(".") == ["app.py:5 ISO001"]


def test_the_installed_command_works_in_its_own_process(here: Path) -> None:
    write(here, {"app.py": SHARED})
    done = run(SCRIPTS / "agentapp", "audit", "app.py", directory=here)
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.startswith("app.py:5: ISO001 error: a module-level object is changed\n")
    assert summary(done.stdout) == (1, 1, 0)


def test_no_cache_finds_the_same(here: Path) -> None:
    write(here, {"app.py": SHARED})
    assert audit(".", "--no-cache", exit_code=1).stdout == audit(".", exit_code=1).stdout


def test_bad_format_is_refused(here: Path) -> None:
    told = audit(".", "--format", "xml", exit_code=2).stderr
    assert [word for word in ("xml", "text", "json", "sarif", "github") if f"'{word}'" not in told] == []


def test_without_any_path_the_error_says_what_to_do(here: Path) -> None:
    result = audit(exit_code=2)
    assert result.stderr == "agentapp: name a PATH, or paths in [tool.agentapp.audit] of pyproject.toml\n"


def test_a_directory_without_python_is_mentioned(here: Path) -> None:
    write(here, {"docs/a.txt": "x"})
    result = audit("docs", exit_code=0)
    assert (summary(result.stdout), result.stderr) == ((0, 0, 0), "agentapp: there is no Python in docs\n")


# -- terminals


def test_characters_that_the_terminal_cannot_show_are_escaped(here: Path) -> None:
    write(here, {"app.py": SHARED.replace("(text)\n", "(text)  # é\n")})
    done = audit("app.py", charset="ascii", exit_code=1)
    assert done.stderr == ""
    assert "HISTORY.append(text)  # \\xe9" in done.stdout


def test_colours_are_for_terminals(here: Path) -> None:
    write(here, {"app.py": SHARED})
    shown = run_on_terminal("app.py", stream="stdout")
    assert shown.exit_code == 1
    assert "\x1b[31mISO001 error\x1b[0m" in shown.terminal
    assert re.sub(r"\x1b\[\d*m", "", shown.terminal) == audit("app.py").stdout
    assert shown.piped == ""


def test_no_color_is_obeyed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, {"app.py": SHARED})
    monkeypatch.setenv("NO_COLOR", "1")
    shown = run_on_terminal("app.py", stream="stdout")
    assert shown.terminal == audit("app.py").stdout


@pytest.mark.parametrize(("count", "is_shown"), [(300, False), (301, True)])
def test_progress_is_shown_for_more_than_300_files(here: Path, count: int, is_shown: bool) -> None:
    write(here, {f"m{n}.py": "" for n in range(count)})
    shown = run_on_terminal(".", "--format", "json", stream="stderr")
    assert (shown.exit_code, shown.piped) == (0, "[]\n")
    assert ("reading 250 of 301 files" in shown.terminal) == is_shown
    assert is_shown or shown.terminal == ""


def test_progress_is_not_shown_on_a_pipe(here: Path) -> None:
    write(here, {f"m{n}.py": "" for n in range(301)})
    assert audit(".", exit_code=0).stderr == ""


# -- --explain


@pytest.mark.parametrize("code", RULES)
def test_each_rule_is_explained(code: str) -> None:
    rule, text = RULES[code], audit("--explain", code, exit_code=0).stdout
    assert text.startswith(f"{code}: {rule.title} ({rule.severity})\n")
    parts = [rule.why, *rule.bad.split("\n"), "Good:", *rule.good.split("\n"), rule.fix]
    position = 0
    for part in parts:
        position = text.index(part, position)


def test_an_unknown_rule_cannot_be_explained() -> None:
    result = audit("--explain", "ISO500", exit_code=2)
    assert (result.stdout, result.stderr) == (
        "",
        f"agentapp: there is no rule 'ISO500'; there are {', '.join(RULES)}\n",
    )


# -- pre-commit


def test_the_pre_commit_hook_runs_the_command_on_the_configured_paths(here: Path) -> None:
    lines = (ROOT / ".pre-commit-hooks.yaml").read_text().splitlines()
    hook = dict(line[2:].split(": ", 1) for line in lines if line[:2] in ("- ", "  "))
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("agentapp-audit", "python", "false")
    write(here, {"src/app.py": SHARED})
    configure(here, "paths = ['src']")
    name, *args = hook["entry"].split()
    assert (name, args[0]) == ("agentapp", "audit")
    assert audit(*args[1:], exit_code=1).stdout.startswith("src/app.py:5: ")
