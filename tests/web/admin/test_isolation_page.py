"""`/admin/isolation`: what it says of the score, and what it says when nobody knows."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest

from agentapp.isolation import ThreadBinder
from agentapp.storage.clock import DatabaseClock
from agentapp.storage.count_series import CountSeries, Stretch
from agentapp.storage.db import Database
from agentapp.storage.minute_counts import MinuteCountStore
from agentapp.storage.workers import WorkerStore
from agentapp.telemetry.minutes import MinuteKey
from agentapp.web.admin.isolation import contained_in_words, quantile_in_words, score_in_words
from agentapp.web.admin.windows import DAY, HOUR, WEEK, Window
from agentapp.web.parts import Parts
from tests.support.admin_rows import SOMEBODY, count, violate
from tests.support.plans import plans_of, scans, sorts
from tests.support.users import Person

ISOLATION = "/admin/isolation"


def figure(page: str, name: str) -> str:
    """The number under a name."""
    _, found, after = page.partition(f"<dt>{name}</dt><dd>")
    assert found, f"there is no {name!r}"
    return after.partition("</dd>")[0]


def test_without_any_request_there_is_no_score(operator: Person) -> None:
    page = operator.get(ISOLATION).text
    assert figure(page, "Score, the last hour") == "no data"
    assert figure(page, "Containment") == "unknown"
    assert figure(page, "Creation, p50") == "no data"
    assert "100%" not in page


def test_one_violation_in_a_million_requests_is_seen_in_the_score() -> None:
    assert score_in_words(0, 0) == "no data"
    assert score_in_words(10_000, 0) == "100%"
    assert score_in_words(1_000_000, 1) == "99.9999%"
    assert score_in_words(10**12, 1) == "99.9999%"
    assert score_in_words(1, 2) == "0%"


def test_failures_of_which_one_was_not_contained_are_not_all_contained() -> None:
    assert contained_in_words(0, 0) == "unknown"
    assert contained_in_words(3, 3) == "100%"
    assert contained_in_words(100_000, 99_999) == "99.9%"


@pytest.mark.parametrize(
    ("buckets", "share", "words"),
    [
        ({"0.0002": 9, "1": 1}, 0.5, "up to 0.2 ms"),
        ({"0.0002": 9, "1": 1}, 0.95, "up to 1 s"),
        ({"0.0002": 1, "0.00005": 1}, 0.5, "up to 0.05 ms"),
        ({"5": 1, "inf": 1}, 0.95, "more than 5 s"),
        ({}, 0.5, "no data"),
    ],
)
def test_times_are_told_by_the_end_of_their_bucket(buckets: dict[str, int], share: float, words: str) -> None:
    assert quantile_in_words(buckets, share).replace("\N{NO-BREAK SPACE}", " ") == words


def test_the_score_is_of_the_last_hour_whatever_is_plotted(operator: Person, parts: Parts) -> None:
    count(parts.db, "", {("isolation_requests", ""): 4, ("isolation_violating", ""): 1})
    count(parts.db, "", {("isolation_requests", ""): 1000}, minutes_ago=60)
    for window in ("1h", "24h", "7d"):
        page = operator.get(f"{ISOLATION}?window={window}").text
        assert figure(page, "Score, the last hour") == "75%"
        assert figure(page, "Requests checked, the last hour") == "4"


def test_checks_and_violations_are_plotted_where_they_were(operator: Person, parts: Parts) -> None:
    count(parts.db, "", {("isolation_checks", ""): 700, ("isolation_violations", "agent-left"): 2}, 120)
    assert figure(operator.get(ISOLATION).text, "Checks") == "0"
    page = operator.get(f"{ISOLATION}?window=24h").text
    assert (figure(page, "Checks"), figure(page, "Violations")) == ("700", "2")
    assert figure(page, "Leaks found (target 0)") == "2"
    assert page.count('<td class="right">700</td>') == page.count('<td class="right">2</td>') == 1
    assert page.count('<td class="right">–</td>') == DAY.bars - 1, "where nothing was checked nobody knows"


def test_violations_are_listed_with_their_request_ids_the_newest_first(
    operator: Person, parts: Parts
) -> None:
    for n in range(52):
        violate(parts, None, "foreign-event", f"request-{n}-")
    first = operator.get(ISOLATION).text
    assert first.index("request-51-") < first.index("request-2-")
    assert "request-1-" not in first
    following = first.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    second = operator.get(following).text
    assert "request-1-" in second
    assert "request-2-" not in second


def test_live_objects_are_those_of_all_workers_that_were_seen_lately(
    operator: Person, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, began = WorkerStore(parts.db), datetime.now(UTC)
    numbers = {"scopes": 1, "agents": 3, "turns": 2, "streams": 5, "db_connections": 4}
    for worker in ("a", "b"):
        store.report(worker, "host", 1, began, numbers)
    with monkeypatch.context() as long_ago:
        long_ago.setattr(DatabaseClock, "utc_now", lambda _: datetime(2020, 1, 1, tzinfo=UTC))
        store.report("dead", "host", 1, began, numbers)
    page = operator.get(ISOLATION).text
    assert (figure(page, "Agents"), figure(page, "Database connections")) == ("6", "8")


def test_a_window_that_there_is_not_is_refused(operator: Person) -> None:
    assert operator.get(f"{ISOLATION}?window=1y").status_code == 400


@pytest.mark.parametrize("window", [HOUR, DAY, WEEK])
def test_the_last_bar_is_now_and_the_first_is_not_missing_a_part(window: Window) -> None:
    now = 1_700_000_123.0
    stretch = window.until(now)
    assert stretch.end - stretch.minutes <= now // 60 < stretch.end
    assert stretch.first % stretch.minutes == 0
    assert len(window.labels(stretch)) == window.bars == stretch.bars


def test_each_count_goes_into_the_bar_of_its_minute(database_url: str) -> None:
    binder = ThreadBinder()
    db = Database(database_url, binder)
    MinuteCountStore(db).add(
        {MinuteKey("refusals", tenant, minute, "a"): 1 for tenant in ("", "t") for minute in range(99, 107)}
    )
    with binder.bound(SOMEBODY):
        found = CountSeries(db).over(Stretch(100, 3, 2), ("refusals", "checks"), None)
        own = CountSeries(db).over(Stretch(100, 3, 2), ("refusals",), "t")
    db.close()
    assert {tuple(key): bars for key, bars in found.items()} == {("refusals", "a"): [6, 6]}
    assert {tuple(key): bars for key, bars in own.items()} == {("refusals", "a"): [3, 3]}


def test_the_page_reads_no_table_as_a_whole(operator: Person, admin: Person, parts: Parts) -> None:
    for who in (operator, admin):
        plans = plans_of(parts.settings.database_url, partial(who.get, f"{ISOLATION}?window=7d"))
        assert any("minute_counts" in text for text in plans)
        assert {name for name, _ in scans(plans)} <= {"workers"}, "there is one row for each process"
        assert [text for text in sorts(plans) if "GROUP BY" not in text] == []
