from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentapp.agents.provider import ToolCall
from agentapp.agents.tool import Tool, ToolContext, ToolInputError
from agentapp.agents.tools.clock import add_to_date, convert_time, current_time, days_between
from agentapp.agents.tools.zones import ALIASES, find_zone
from agentapp.isolation import Scope

# A loaded machine is no failure.
unhurried = settings(deadline=None)

SCOPE = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
NOW = datetime(2026, 3, 1, 22, 5, 9, 123, tzinfo=UTC)


def told(tool: Tool, now: datetime = NOW, **values: Any) -> str:
    return str(tool.call(ToolContext(SCOPE, now=lambda: now), ToolCall("1", tool.name, values)))


def refused(tool: Tool, **values: Any) -> str:
    with pytest.raises(ToolInputError) as caught:
        told(tool, **values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("Tokyo", "Asia/Tokyo"),
        ("new york", "America/New_York"),
        ("New_York", "America/New_York"),
        ("BERLIN", "Europe/Berlin"),
        ("utc", "UTC"),
        ("america/new_york", "America/New_York"),
        ("San Francisco", "America/Los_Angeles"),
        ("Zürich", "Europe/Zurich"),
        ("São Paulo", "America/Sao_Paulo"),
        ("St. Petersburg", "Europe/Moscow"),
        ("France", "Europe/Paris"),
        ("Germany", "Europe/Berlin"),
        ("est", "America/New_York"),
        ("buenos aires", "America/Argentina/Buenos_Aires"),
        ("Etc/GMT+5", "Etc/GMT+5"),
        ("GMT+5", "UTC+05:00"),
        ("UTC-3", "UTC-03:00"),
        ("+05:30", "UTC+05:30"),
    ],
)
def test_zone_is_found_however_people_write_it(asked: str, name: str) -> None:
    assert find_zone(asked).name == name


def test_every_city_of_an_alias_is_a_real_zone() -> None:
    assert {find_zone(alias).name for alias in ALIASES} == set(ALIASES.values())


def test_unknown_zone_is_refused_with_near_matches() -> None:
    assert refused(current_time, zone="Berln").startswith(
        "no time zone is known for 'Berln'; did you mean Europe/Berlin"
    )


@pytest.mark.parametrize("asked", ["", "xyzzy", "../../etc/passwd", "/etc/localtime", "Factory", "a" * 5000])
def test_what_is_no_place_is_refused(asked: str) -> None:
    assert refused(current_time, zone=asked).startswith("no time zone is known for")


def test_country_with_several_times_is_refused_with_its_zones() -> None:
    problem = refused(current_time, zone="USA")
    assert "United States has several time zones" in problem
    assert "America/Denver" in problem


def test_offset_nobody_uses_is_refused() -> None:
    assert "no offset that is in use" in refused(current_time, zone="UTC+25")


def test_current_time_comes_from_the_context_and_names_day_and_offset() -> None:
    assert told(current_time, zone="Tokyo") == "It is Monday 2026-03-02 07:05:09 (UTC+09:00) in Asia/Tokyo."
    assert told(current_time) == "It is Sunday 2026-03-01 22:05:09 (UTC+00:00) in UTC."


@pytest.mark.parametrize(
    ("when", "answer"),
    [
        (
            "2026-07-01 14:30",
            "Wednesday 2026-07-01 14:30 (UTC+02:00) in Europe/Berlin is "
            "Wednesday 2026-07-01 12:30 (UTC+00:00) in UTC.",
        ),
        (
            "3pm",
            "Sunday 2026-03-01 15:00 (UTC+01:00) in Europe/Berlin is "
            "Sunday 2026-03-01 14:00 (UTC+00:00) in UTC.",
        ),
        (
            "12:15 am",
            "Sunday 2026-03-01 00:15 (UTC+01:00) in Europe/Berlin is "
            "Saturday 2026-02-28 23:15 (UTC+00:00) in UTC.",
        ),
        (
            "now",
            "Sunday 2026-03-01 23:05:09 (UTC+01:00) in Europe/Berlin is "
            "Sunday 2026-03-01 22:05:09 (UTC+00:00) in UTC.",
        ),
    ],
)
def test_time_is_converted_with_both_offsets(when: str, answer: str) -> None:
    assert told(convert_time, when=when, from_zone="Berlin", to_zone="utc") == answer


def test_bare_time_means_today_in_the_zone_it_is_from() -> None:
    told_time = told(convert_time, when="06:00", from_zone="Tokyo", to_zone="utc")
    assert told_time.startswith("Monday 2026-03-02 06:00 (UTC+09:00)")


def test_time_skipped_by_the_clock_change_is_told_not_guessed() -> None:
    answer = told(convert_time, when="2026-03-29 02:30", from_zone="Berlin", to_zone="utc")
    assert "02:30 does not exist in Europe/Berlin" in answer
    assert "Taken as Sunday 2026-03-29 03:30 (UTC+02:00) there, it is Sunday 2026-03-29 01:30" in answer


def test_time_that_happens_twice_is_told_with_both_meanings() -> None:
    answer = told(convert_time, when="2026-10-25 02:30", from_zone="Berlin", to_zone="utc")
    assert "02:30 happens twice in Europe/Berlin" in answer
    assert "00:30 (UTC+00:00) in UTC, the second Sunday 2026-10-25 01:30 (UTC+00:00)" in answer


def test_now_is_never_doubtful_even_in_the_hour_that_comes_twice() -> None:
    second = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    answer = told(convert_time, now=second, when="now", from_zone="Berlin", to_zone="utc")
    assert answer.startswith(
        "Sunday 2026-10-25 02:30 (UTC+01:00) in Europe/Berlin is Sunday 2026-10-25 01:30"
    )


@pytest.mark.parametrize("when", ["25:00", "13pm", "0am", "14", "2026-02-30 10:00", "soon", "", "-"])
def test_what_is_no_time_is_refused_with_an_example(when: str) -> None:
    assert "is no time; write" in refused(convert_time, when=when, from_zone="utc", to_zone="utc")


def test_offset_within_the_time_is_refused() -> None:
    assert "leave the offset out" in refused(
        convert_time, when="2026-01-01T10:00+02:00", from_zone="utc", to_zone="utc"
    )


@pytest.mark.parametrize(("when", "zone"), [("0001-01-01 00:00", "Tokyo"), ("9999-12-31 23:59", "New York")])
def test_edge_of_the_calendar_is_refused(when: str, zone: str) -> None:
    assert "too far away" in refused(convert_time, when=when, from_zone=zone, to_zone="utc")


@pytest.mark.parametrize(
    ("start", "end", "answer"),
    [
        (
            "2026-01-01",
            "2026-03-01",
            "From Thursday 2026-01-01 to Sunday 2026-03-01 it is 59 days (8 weeks and 3 days).",
        ),
        ("tomorrow", "yesterday", "From Monday 2026-03-02 to Saturday 2026-02-28 it is 2 days back."),
        ("today", "2026-03-02", "From Sunday 2026-03-01 to Monday 2026-03-02 it is 1 day."),
        ("today", "TODAY", "Both are Sunday 2026-03-01: 0 days."),
    ],
)
def test_days_are_counted_in_both_directions(start: str, end: str, answer: str) -> None:
    assert told(days_between, start=start, end=end) == answer


@pytest.mark.parametrize(
    ("steps", "answer"),
    [
        (
            {"months": 1},
            "1 month after Saturday 2026-01-31 is Saturday 2026-02-28 "
            "(that month has no day 31, so its last day is taken).",
        ),
        ({"weeks": 2, "days": 1}, "2 weeks, 1 day after Saturday 2026-01-31 is Sunday 2026-02-15."),
        ({"years": -1}, "1 year before Saturday 2026-01-31 is Friday 2025-01-31."),
        ({"months": -1}, "1 month before Saturday 2026-01-31 is Wednesday 2025-12-31."),
        ({}, "0 days after Saturday 2026-01-31 is Saturday 2026-01-31."),
    ],
)
def test_steps_are_added_to_a_date(steps: dict[str, int], answer: str) -> None:
    assert told(add_to_date, start="2026-01-31", **steps) == answer


@pytest.mark.parametrize(
    "steps", [{"years": 9000}, {"years": -2026}, {"months": -24400}, {"days": 999_999, "weeks": 999_999}]
)
def test_date_outside_the_calendar_is_refused(steps: dict[str, int]) -> None:
    assert refused(add_to_date, start="2026-01-31", **steps) == "the result lies outside the years 1 to 9999"


def test_huge_step_is_refused() -> None:
    assert "at most 1,000,000" in refused(add_to_date, start="today", days=10**30)


@pytest.mark.parametrize("text", ["2026-02-30", "01/02/2026", "", "someday"])
def test_what_is_no_date_is_refused_with_an_example(text: str) -> None:
    assert "is no date; write it like" in refused(days_between, start=text, end="today")


@unhurried
@given(st.dates(), st.integers(-100_000, 100_000))
def test_adding_days_and_counting_them_agree(start: Any, days: int) -> None:
    try:
        end = start + timedelta(days=days)
    except OverflowError:
        return
    assert f" is {_named(end)}" in told(add_to_date, start=start.isoformat(), days=days)
    counted = told(days_between, start=start.isoformat(), end=end.isoformat())
    assert f"{abs(days):,} day" in counted


def _named(day: Any) -> str:
    return f"{day:%A} {day.isoformat()}"
