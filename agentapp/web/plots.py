"""Plots that are made on the server: bars over time. The template draws them, with their table below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, floor, log10

HEIGHT = 100.0  # of the drawing, in its own units; it is stretched to the size that there is
GAP = 0.2  # between two bars, as a share of one


@dataclass(frozen=True, slots=True)
class Series:
    """``values`` are one for each label of the plot; None where there is no data."""

    name: str
    values: Sequence[float | None]

    @property
    def total(self) -> float:
        return sum(value or 0.0 for value in self.values)


@dataclass(frozen=True, slots=True)
class Bar:
    """``series`` is the number of its series, which decides the colour."""

    x: float
    y: float
    width: float
    height: float
    series: int


@dataclass(frozen=True, slots=True)
class Plot:
    """``ticks`` are the texts beside the drawing, from top to bottom. ``rows`` are those of its table."""

    title: str
    series: tuple[str, ...]
    bars: tuple[Bar, ...]
    width: int
    height: float
    ticks: tuple[str, ...]
    labels: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    has_data: bool


def bar_plot(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    written: Callable[[float], str] = "{:,.0f}".format,
    top: float | None = None,
) -> Plot:
    """Bars of several series stand on top of each other. ``top`` is the highest value that is drawn; without
    it, it is a round number above all of them.
    """
    stacks = [[each.values[n] or 0.0 for each in series] for n in range(len(labels))]
    top = top or rounded_up(max((sum(stack) for stack in stacks), default=0.0))
    bars = [bar for n, stack in enumerate(stacks) for bar in _stacked(n, stack, top)]
    rows = [
        (label, *("–" if (value := each.values[n]) is None else written(value) for each in series))
        for n, label in enumerate(labels)
    ]
    return Plot(
        title=title,
        series=tuple(each.name for each in series),
        bars=tuple(bars),
        width=max(1, len(labels)),
        height=HEIGHT,
        ticks=_ticks(top, written),
        labels=tuple(labels),
        rows=tuple(rows),
        has_data=any(value is not None for each in series for value in each.values),
    )


def _ticks(top: float, written: Callable[[float], str]) -> tuple[str, ...]:
    """From top to bottom. Half of the top is left out where its text would be that of another tick."""
    ends, half = (written(top), written(0)), written(top / 2)
    return ends[0], "" if half in ends else half, ends[1]


def rounded_up(value: float) -> float:
    """To 1, 2, 4, 6 or 8 times a power of ten, so that half of it is easy to read too."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** floor(log10(value))
    step = next(step for step in (1, 2, 4, 6, 8, 10) if value <= step * power or step == 10)
    return step * power if value <= step * power else ceil(value / power) * power


def _stacked(n: int, stack: Sequence[float], top: float) -> list[Bar]:
    ends = list(accumulate(stack))
    return [
        Bar(n + GAP / 2, HEIGHT * (1 - end / top), 1 - GAP, HEIGHT * value / top, which)
        for which, (end, value) in enumerate(zip(ends, stack, strict=True))
        if value > 0
    ]
