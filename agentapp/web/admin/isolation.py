"""`/admin/isolation`: does isolation hold, how do we know, and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from types import MappingProxyType

from flask import Blueprint, render_template

from agentapp.storage.count_series import Counted
from agentapp.telemetry.catalogue import LIVE
from agentapp.telemetry.measurements import isolation_score
from agentapp.web.admin.paging import PAGE_ROWS, after, page_of
from agentapp.web.admin.viewer import Viewer, viewer
from agentapp.web.admin.windows import HOUR, WINDOWS, Window, chosen_window
from agentapp.web.parts import now, parts
from agentapp.web.plots import Plot, Series, bar_plot

CHECKS, VIOLATIONS = "isolation_checks", "isolation_violations"
REQUESTS, VIOLATING = "isolation_requests", "isolation_violating"
FAILURES, CONTAINED = "failures", "failures_contained"
COUNTS = (CHECKS, VIOLATIONS, FAILURES, CONTAINED)
TIMES = ("agent_creation", "agent_reset")
LEAKS = ("left-bound", "connection-left", "agent-left", "subscription-left")
LIVE_IN_WORDS = MappingProxyType({"db_connections": "Database connections"})
NO_DATA = "no data"

Counts = Mapping[Counted, Sequence[int]]
Pairs = tuple[tuple[str, str], ...]

blueprint = Blueprint("isolation", __name__, url_prefix="/isolation")


@dataclass(frozen=True, slots=True)
class IsolationView:
    score: Pairs
    figures: Pairs
    plots: tuple[Plot, ...]
    of_server: tuple[tuple[str, Pairs], ...]  # for operators


@blueprint.get("")
def index() -> str:
    who, window = viewer(), chosen_window()
    key = after(int)
    before = None if key is None else int(key[0])
    found = parts().admin.violations.page(who.tenant_id, before, PAGE_ROWS + 1)
    return render_template(
        "admin/isolation.html",
        view=_view(who, window, now()),
        window=window,
        windows=WINDOWS.values(),
        page=page_of(found, lambda row: (row.id,)),
    )


def _view(who: Viewer, window: Window, now: float) -> IsolationView:
    counts, stretch, last_hour = parts().admin.counts, window.until(now), _last_hour(who, now)
    series = counts.over(stretch, COUNTS, who.tenant_id)
    labels = window.labels(stretch)
    checks, violations = _bars(series, CHECKS, len(labels)), _bars(series, VIOLATIONS, len(labels))
    of_server: tuple[tuple[str, Pairs], ...] = ()
    if who.is_operator:
        times = counts.over(stretch, TIMES, None)
        of_server = (
            ("There are now", tuple(_live(parts().admin.live_objects.now()))),
            ("Time to make the agents of a turn, and to clear them", tuple(_times(times))),
        )
    return IsolationView(
        score=(
            ("Score, the last hour", _score(last_hour)),
            ("Requests checked, the last hour", f"{_total(last_hour, REQUESTS):,}"),
        ),
        figures=tuple(_figures(series)),
        plots=(
            bar_plot(f"Checks, {window.words}", labels, [Series("Checks", checks)]),
            bar_plot(
                f"Violations, {window.words}",
                labels,
                [Series("Violations", _where_checked(violations, checks))],
            ),
        ),
        of_server=of_server,
    )


def score_of_last_hour(who: Viewer, now: float) -> str:
    return _score(_last_hour(who, now))


def _score(counts: Counts) -> str:
    return score_in_words(_total(counts, REQUESTS), _total(counts, VIOLATING))


def _last_hour(who: Viewer, now: float) -> Counts:
    return parts().admin.counts.over(HOUR.until(now), (REQUESTS, VIOLATING), who.tenant_id)


def score_in_words(requests: int, violating: int) -> str:
    """Rounded down, so that it is 100 % only if no request violated isolation."""
    score = isolation_score(requests, violating)
    if score is None:
        return NO_DATA
    return f"{floor(score * 1_000_000) / 10_000:.4f}".rstrip("0").rstrip(".") + "%"


def contained_in_words(failures: int, contained: int) -> str:
    return f"{floor(1000 * contained / failures) / 10:g}%" if failures else "unknown"


def quantile_in_words(buckets: Mapping[str, int], share: float) -> str:
    """The upper end of the bucket in which this share of all is reached."""
    left = ceil(share * sum(buckets.values()))
    below = 0.0
    for bound in sorted(buckets, key=float):
        if (left := left - buckets[bound]) <= 0:
            return f"more than {_seconds(below)}" if bound == "inf" else f"up to {_seconds(float(bound))}"
        below = float(bound)
    return NO_DATA


def _figures(series: Counts) -> Iterable[tuple[str, str]]:
    failures, contained = _total(series, FAILURES), _total(series, CONTAINED)
    leaks = sum(_total(series, VIOLATIONS, leak) for leak in LEAKS)
    yield "Checks", f"{_total(series, CHECKS):,}"
    yield "Violations", f"{_total(series, VIOLATIONS):,}"
    yield "Leaks found (target 0)", f"{leaks:,}"
    yield "Failed turns", f"{failures:,}"
    yield "Of these contained", f"{contained:,}"
    yield "Containment", contained_in_words(failures, contained)


def _live(numbers: Mapping[str, float]) -> Iterable[tuple[str, str]]:
    for kind in LIVE:
        name = LIVE_IN_WORDS.get(kind, kind.capitalize())
        yield name, f"{numbers[kind]:,.0f}" if kind in numbers else NO_DATA


def _times(series: Counts) -> Iterable[tuple[str, str]]:
    for name, words in zip(TIMES, ("Creation", "Reset"), strict=True):
        buckets = {counted.label: sum(bars) for counted, bars in series.items() if counted.name == name}
        for share, its_name in ((0.5, "p50"), (0.95, "p95")):
            yield f"{words}, {its_name}", quantile_in_words(buckets, share)


def _bars(series: Counts, name: str, count: int) -> list[int]:
    of_name = [bars for counted, bars in series.items() if counted.name == name]
    return [sum(bars) for bars in zip(*of_name, strict=True)] or [0] * count


def _where_checked(violations: Sequence[int], checks: Sequence[int]) -> list[float | None]:
    """Where nothing was checked nobody knows."""
    return [
        float(found) if found or checked else None for found, checked in zip(violations, checks, strict=True)
    ]


def _total(series: Counts, name: str, label: str | None = None) -> int:
    return sum(
        sum(bars)
        for counted, bars in series.items()
        if counted.name == name and label in (None, counted.label)
    )


def _seconds(value: float) -> str:
    return f"{value:g}\N{NO-BREAK SPACE}s" if value >= 1 else f"{value * 1000:g}\N{NO-BREAK SPACE}ms"
