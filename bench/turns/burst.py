"""Streams begun at once on a cold server: a fresh directory, default settings, no ramp."""

from __future__ import annotations

from typing import Any

from bench.turns.figures import Figures, Row
from bench.turns.plain import note_wrong
from bench.turns.plans import Phase
from bench.turns.runs import at, run
from bench.turns.systems import System, Systems
from bench.turns.talk import STREAMED

TIMEOUT_SECONDS = 120.0


def measure(systems: Systems, system: System, figures: Figures, streams: int, comes_back: bool) -> None:
    phase = Phase(
        "burst",
        STREAMED.message,
        STREAMED.reply,
        streams,
        accept="text/event-stream",
        comes_back=comes_back,
        timeout=TIMEOUT_SECONDS,
    )
    found = run(systems, system, [phase])
    (outcome,) = found.outcomes
    firsts = {each.person: each for each in reversed(outcome.sent)}.values()
    refused = [each for each in firsts if each.status >= 400]
    times = [each.took for each in outcome.whole]
    what = f"{streams} streams at once: "

    def add(name: str, value: float, unit: str = "", digits: int = 0, **more: Any) -> None:
        figures.add(system.name, Row(what + name, unit, digits, **more), value)

    add("p99 of whole ones", at(times, 0.99), " s", 2)
    add("CPU a whole turn", outcome.cpu * 1000 / max(1, len(outcome.whole)), " ms")
    add("whole at first try", sum(not each.code for each in firsts), more_is_better=True, bases=())
    add("refused at first try", len(refused), bases=())
    if refused:
        add("slowest refusal", max(each.took for each in refused), " s", 2, bases=())
    add("cut or failed", sum(bool(each.code) and each not in refused for each in firsts), bases=())
    add("whole in the end", len(outcome.whole), more_is_better=True, bases=())
    add(
        "last one whole after",
        max((each.ended - outcome.began for each in outcome.whole), default=0),
        " s",
        2,
    )
    add("goodput", len(outcome.whole) / outcome.seconds, "/s", 1, more_is_better=True)
    add("peak RSS of the workers", found.peak_rss, " MiB")
    if system.is_agentapp:
        lost = sum(count for status, count in found.statuses.items() if status != "completed")
        add("turns not completed in the database", lost, bases=())
    note_wrong(figures, f"{system.name}, {what.removesuffix(': ')}", outcome)
