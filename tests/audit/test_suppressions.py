"""Comments that suppress a finding: where they count, and what they must say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentapp.audit import suppressions
from agentapp.audit.judge import Hazard
from agentapp.audit.rules import RULES
from tests.audit.support.command import (
    SHARED,
    STATE,
    audit,
    changing_module,
    configure,
    findings,
    reported,
    summary,
    write,
)

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("separator", [" - ", " -- ", " – ", ": ", " : ", "-", " —  "])
def test_a_suppression_with_a_reason(here: Path, separator: str) -> None:
    comment = f"(text)  # agentapp: shared ok{separator}only a log\n"
    write(here, {"app.py": SHARED.replace("(text)\n", comment)})
    assert summary(audit(".", exit_code=0).stdout) == (1, 0, 1)


@pytest.mark.parametrize("said", ["", " -", " - ", ":", " because", " - ...", " - # noqa", "  # noqa"])
def test_a_suppression_without_a_reason_is_a_finding_and_suppresses_nothing(here: Path, said: str) -> None:
    write(here, {"app.py": SHARED.replace("(text)\n", f"(text)  # agentapp: shared ok{said}\n")})
    assert reported(".") == ["app.py:5 ISO001", "app.py:5 ISO090"]


@pytest.mark.parametrize(
    "comment", ["# noqa # agentapp: shared ok - a log", "#agentapp: shared ok - see #12"]
)
def test_a_suppression_may_share_a_comment_with_another_tool(here: Path, comment: str) -> None:
    write(here, {"app.py": SHARED.replace("(text)\n", f"(text)  {comment}\n")})
    assert reported(".") == []


@pytest.mark.parametrize(
    "line",
    [
        'HISTORY.append("# agentapp: shared ok - no comment")',
        'HISTORY.append("""\n# agentapp: shared ok - no comment\n""")',
        "HISTORY.append(text)  # agentapp: shared okay - misspelt",
        "HISTORY.append(text)  # see agentapp: shared ok - somewhere",
    ],
)
def test_texts_and_misspelt_comments_do_not_suppress(here: Path, line: str) -> None:
    write(here, {"app.py": SHARED.replace("HISTORY.append(text)", line)})
    assert reported(".") == ["app.py:5 ISO001"]


MANY_LINES = """\
HISTORY = []


def chat(text):
    print({first}
        text,
        HISTORY.append(text),{here}
    ){last}
"""


@pytest.mark.parametrize("at", ["first", "here", "last"])
def test_a_suppression_on_any_end_of_the_statement(here: Path, at: str) -> None:
    places = dict.fromkeys(("first", "here", "last"), "")
    write(here, {"app.py": MANY_LINES.format(**places)})
    assert reported(".") == ["app.py:7 ISO001"]
    comment = "  # agentapp: shared ok - a log"
    write(here, {"app.py": MANY_LINES.format(**places | {at: comment})})
    assert reported(".") == []


def test_a_suppression_elsewhere_in_the_function_does_not_count(here: Path) -> None:
    write(here, {"app.py": SHARED.replace("chat(text):", "chat(text):  # agentapp: shared ok - a log")})
    assert reported(".") == ["app.py:4 ISO091", "app.py:5 ISO001"]


CACHED = """\
from functools import lru_cache


class Shop:
    @staticmethod
    def a(): ...

    @lru_cache{first}
    @some(
        1,{second}
    )
    def price(self, sku):{third}
        return sku{inside}
"""


@pytest.mark.parametrize("at", ["first", "second", "third"])
def test_a_suppression_on_a_decorator(here: Path, at: str) -> None:
    places, comment = (
        dict.fromkeys(("first", "second", "third", "inside"), ""),
        "  # agentapp: shared ok - one",
    )
    write(here, {"app.py": CACHED.format(**places)})
    assert [item["rule"] for item in findings(".")] == ["ISO007"]
    write(here, {"app.py": CACHED.format(**places | {at: comment})})
    assert reported(".") == []
    write(here, {"app.py": CACHED.format(**places | {"inside": comment})})
    assert [item["rule"] for item in findings(".")] == ["ISO007", "ISO091"]


def test_a_suppression_where_the_object_is_defined_counts_for_all_changes(here: Path) -> None:
    """Also if that is another file, in a directory with an odd name."""
    write(
        here,
        {
            "a (b), from c/state.py": "HISTORY = []  # agentapp: shared ok - a log\n",
            "a (b), from c/x.py": changing_module("state"),
            "a (b), from c/y.py": changing_module("state"),
        },
    )
    result = audit("a (b), from c", exit_code=0)
    assert summary(result.stdout)[0] == 3
    assert summary(result.stdout)[2] >= 1
    write(here, {"a (b), from c/state.py": STATE})
    assert audit("a (b), from c").exit_code == 1


def test_a_suppression_where_a_shared_instance_is_made(here: Path) -> None:
    bad = RULES["ISO004"].bad
    write(here, {"app.py": bad})
    assert "ISO004" in audit(".", exit_code=1).stdout
    write(
        here, {"app.py": bad.replace("agent = Agent()", "agent = Agent()  # agentapp: shared ok - a counter")}
    )
    assert reported(".") == []


def test_a_suppression_may_be_at_any_place_that_the_message_names() -> None:
    def sort(message: str, line: int, path: str = "b.py") -> tuple[str, ...]:
        comments = {path: suppressions.Comments({line: "because"}, {})}
        left = suppressions.apply_comments([Hazard("a.py", 9, "ISO004", message)], comments).left
        return tuple(hazard.rule for hazard in left)

    message = "`A.x` (odd) of `a` (b.py:3), from b.py:12, is changed by `f` (also changed in lines 4, 5)"
    assert sort(message, 3) == ()
    assert sort(message, 12) == ()
    assert sort(message, 1) == ("ISO004", "ISO091")
    assert sort(message, 4) == ("ISO004", "ISO091")
    assert sort(message, 12, "other/b.py") == ("ISO004", "ISO091")


def test_an_unused_suppression_is_a_finding(here: Path) -> None:
    write(
        here, {"app.py": "LIMIT = 10  # agentapp: shared ok - only read\n\n# agentapp: shared ok - or this\n"}
    )
    assert reported(".") == ["app.py:1 ISO091", "app.py:3 ISO091"]


def test_a_suppression_of_a_rule_that_is_off_counts_as_used(here: Path) -> None:
    write(here, {"app.py": SHARED.replace("[]", "[]  # agentapp: shared ok - a log")})
    configure(here, 'ignore = ["ISO001"]')
    assert summary(audit(".", exit_code=0).stdout) == (1, 0, 0)


def test_only_files_that_mention_a_suppression_are_tokenized(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, {"app.py": SHARED, "b.py": "# agentapp: shared ok - x\n", "c.py": "# agentapp: sha\n"})
    real, seen = suppressions.tokenize.tokenize, list[int]()

    def tokenize(readline: Any) -> Iterator[Any]:
        seen.append(1)
        return real(readline)

    monkeypatch.setattr(suppressions.tokenize, "tokenize", tokenize)
    assert reported(".") == ["app.py:5 ISO001", "b.py:1 ISO091"]
    assert len(seen) == 1


def test_comments_that_cannot_be_read_are_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenize(readline: Any) -> Iterator[Any]:
        raise suppressions.tokenize.TokenError("EOF in multi-line statement", (1, 0))

    write(here, {"app.py": f"# agentapp: shared ok\n{SHARED}"})
    monkeypatch.setattr(suppressions.tokenize, "tokenize", tokenize)
    assert reported(".") == ["app.py:1 ISO099", "app.py:6 ISO001"]
