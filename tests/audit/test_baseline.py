"""The baseline: findings that were known before and are not reported again."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentapp.audit import baseline
from agentapp.audit.findings import Finding
from tests.audit.support.command import (
    SHARED,
    audit,
    findings,
    reported,
    write,
)

pytestmark = pytest.mark.usefixtures("here")


def keep(here: Path, *args: str) -> str:
    (here / "baseline.json").write_text(audit(*args, "--format", "json").stdout)
    return "baseline.json"


def test_findings_in_the_baseline_are_not_reported(here: Path) -> None:
    write(here, {"app.py": SHARED})
    known = keep(here, ".")
    result = audit(".", "--baseline", known, exit_code=0)
    assert result.stdout == "1 file, 0 findings, 0 suppressed, 1 in the baseline\n"
    assert findings(".", "--baseline", known) == []


def test_the_baseline_still_applies_when_lines_move(here: Path) -> None:
    more = "\n\ndef other(text):\n    HISTORY.clear()\n\n\ndef third(text):\n    HISTORY.clear()\n"
    write(here, {"app.py": SHARED + more})
    assert "lines 9, 13" in findings(".")[0]["message"]
    known = keep(here, ".")
    write(here, {"app.py": "import os\n" * 90 + SHARED + more})
    assert "lines 99, 103" in findings(".")[0]["message"]
    assert findings(".", "--baseline", known) == []


@pytest.mark.parametrize(
    "edited",
    [
        SHARED.replace("HISTORY", "HISTORY2"),
        SHARED.replace("chat", "chat2"),
        SHARED + SHARED.replace("HIS", "MY"),
    ],
    ids=["another object", "another function", "one more"],
)
def test_new_findings_are_reported(here: Path, edited: str) -> None:
    write(here, {"app.py": SHARED})
    known = keep(here, ".")
    write(here, {"app.py": edited})
    assert len(findings(".", "--baseline", known)) == 1


def test_the_same_in_another_file_is_new(here: Path) -> None:
    write(here, {"app.py": SHARED})
    known = keep(here, ".")
    write(here, {"b.py": SHARED})
    assert reported(".", "--baseline", known) == ["b.py:5 ISO001"]


def test_two_in_the_baseline_excuse_two() -> None:
    def finding(line: int) -> Finding:
        return Finding("app.py", line, "ISO001", "error", f"`X`, from app.py:{line}, is changed by `f`")

    two = baseline.key_of("app.py", "ISO001", finding(1).message)
    excused = baseline.nothing() + baseline.nothing()
    excused[two] = 2
    assert baseline.without(map(finding, (4, 5)), excused) == ([], 2)
    assert baseline.without(map(finding, (4, 5, 6)), excused) == ([finding(6)], 2)
    assert excused[two] == 2


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        ("`X`, from a.py:1, is changed by `f`", "`X`, from a.py:20, is changed by `f`", True),
        ("changed in line 9)", "changed in lines 9, 10, 12)", True),
        ("by `f@12`", "by `f@13`", True),
        ("by `<lambda:3:4>`", "by `<lambda:33:8>`", True),
        ("by `step1`", "by `step2`", False),
        ("by `v1_2`", "by `v1_3`", False),
        ("`X`, from a1.py:1,", "`X`, from a2.py:1,", False),
    ],
)
def test_which_messages_have_the_same_key(one: str, other: str, are_alike: bool) -> None:
    assert (baseline.key_of("a", "b", one) == baseline.key_of("a", "b", other)) == are_alike


def test_a_baseline_never_excuses_an_unreadable_file(here: Path) -> None:
    write(here, {"app.py": "("})
    known = keep(here, ".")
    assert "ISO099" in Path(known).read_text()
    audit(".", "--baseline", known, exit_code=2)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "is not a list, as --format json prints it"),
        (b"[1]", "has no path, rule and message in its finding 1"),
        (b'[{"path": "a", "rule": "ISO001"}]', "has no path, rule and message in its finding 1"),
        (
            b'[{"path": "a", "rule": "I", "message": "m"}, {"path": "a", "rule": 1, "message": "m"}]',
            "has no path, rule and message in its finding 2",
        ),
    ],
)
def test_a_bad_baseline_gives_one_line_and_exit_code_2(
    here: Path, content: bytes | None, problem: str
) -> None:
    write(here, {"app.py": SHARED} | ({"known.json": content} if content is not None else {}))
    result = audit(".", "--baseline", "known.json", exit_code=2)
    assert (result.stdout, result.stderr) == ("", f"agentapp: the baseline known.json {problem}\n")


def test_a_baseline_that_is_a_directory_is_refused(here: Path) -> None:
    assert (
        "the baseline . cannot be read: Is a directory" in audit(".", "--baseline", ".", exit_code=2).stderr
    )


def test_a_baseline_in_utf_16_is_read(here: Path) -> None:
    write(here, {"app.py": SHARED})
    (here / "known.json").write_text(audit(".", "--format", "json").stdout, encoding="utf-16")
    audit(".", "--baseline", "known.json", exit_code=0)
