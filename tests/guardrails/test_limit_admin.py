"""What an admin may give a user: nothing that the tenant was not given."""

from __future__ import annotations

from typing import Any

import pytest

from agentapp.guardrails.limit_changes import LIMITS, limit_problems

USER = {limit.name: limit for limit in LIMITS["user"]}


@pytest.mark.parametrize(
    ("limit", "value", "most", "is_above"),
    [
        ("budget", 5, 5, False),
        ("budget", 6, 5, True),
        ("budget", None, 5, True),
        ("budget", 6, None, False),
        ("budget", None, None, False),
        ("concurrent", 3, 4, False),
        ("rate", (60, 60.0), (60, 60.0), False),
        ("rate", (61, 60.0), (60, 60.0), True),
        ("rate", (60, 30.0), (60, 60.0), True),
        ("rate", (30, 30.0), (60, 60.0), False),
        ("rate", (61, 3600.0), (60, 60.0), True),
        ("rate", None, (60, 60.0), True),
    ],
)
def test_off_is_above_all_and_a_rate_counts_in_the_long_run_and_at_once(
    limit: str, value: Any, most: Any, is_above: bool
) -> None:
    assert USER[limit].is_above(value, most) is is_above


def test_every_text_that_is_wrong_is_told_at_once() -> None:
    wanted = {"rate": "fast", "budget": "-1", "concurrent": "5"}
    problems = limit_problems("user", (), wanted, {"concurrent": 4})
    assert set(problems) == set(wanted)
    assert "'fast'" in problems["rate"]
    assert "at most 4" in problems["concurrent"]


def test_what_an_operator_has_raised_may_stay_and_be_lowered() -> None:
    before, most = (("concurrent", 9),), {"concurrent": 4}
    assert limit_problems("user", before, {"concurrent": "9"}, most) == {}
    assert limit_problems("user", before, {"concurrent": ""}, most) == {}
    assert set(limit_problems("user", before, {"concurrent": "8"}, most)) == {"concurrent"}
