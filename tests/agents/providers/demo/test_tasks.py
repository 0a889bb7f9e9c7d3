"""What the demo model finds in a message."""

from __future__ import annotations

import pytest

from agentapp.agents.providers.demo.arithmetic import find_expressions
from agentapp.agents.providers.demo.tasks import find_tasks


@pytest.mark.parametrize(
    ("text", "sums"),
    [
        ("what is 17*23?", ["17*23"]),
        ("2+2, 3*7 and (1+1)^2.", ["2+2", "3*7", "(1+1)^2"]),
        ("max(1, 2) plus nothing", ["max(1, 2)"]),
        ("is 1,234 + 1 right?", ["1,234 + 1"]),
        ("10 plus 5", ["10 + 5"]),
        ("3 x 4", ["3 * 4"]),
        ("square root of 16", ["sqrt(16)"]),
        ("5!", ["5!"]),
        ("2+2!", ["2+2"]),
        ("(what is 2+2)", ["2+2"]),
        ("what is 10-3", ["10-3"]),
        ("10-3", ["10-3"]),
        ("pages 10-3", []),
        ("call 555-1234 or +1 555 123", []),
        ("mark-12-34", []),
        ("12-34abc", []),
        ("a716-446655440000", []),
        ("http://x.y/1-2", []),
        ("version 1.2.3", []),
        ("C++ 17", []),
        ("I have 3 apples", []),
    ],
)
def test_sums_are_told_from_other_numbers(text: str, sums: list[str]) -> None:
    assert list(find_expressions(text)) == sums


@pytest.mark.parametrize(
    "text", ["on 2026-03-01 at 10:30", "what is the time complexity of sorting", "good day to you"]
)
def test_dates_and_small_talk_are_no_tasks(text: str) -> None:
    assert find_tasks(text) == ()


def test_what_is_to_be_noted_is_not_computed() -> None:
    (job,) = find_tasks("remember that 2+2 and the time in Tokyo")
    assert (job.tool, job.input) == ("add_note", {"text": "2+2 and the time in Tokyo"})
