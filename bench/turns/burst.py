"""Streams begun at once on a cold server: a fresh directory, default settings, no ramp."""

from __future__ import annotations

from typing import Any

from bench.turns.figures import Figures, Row
from bench.turns.plain import note_outcome
from bench.turns.plans import Outcome, Phase
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
    what = f"{streams} streams at once"

    def add(name: str, value: float, unit: str = "", digits: int = 0, **more: Any) -> None:
        figures.add(system.name, Row(f"{what}: {name}", unit, digits, **more), value)

    add("p99 of whole ones", at([each.took for each in outcome.whole], 0.99), " s", 2)
    add("CPU a whole turn", outcome.cpu * 1000 / max(1, len(outcome.whole)), " ms")
    goodput = len(outcome.whole) / outcome.seconds
    add("goodput", goodput, "/s", 1, more_is_better=True)
    if comes_back:
        for fewer, calm in figures.medians(system.name, " streams at once: goodput").items():
            if not fewer.startswith(what):
                add(f"goodput, of that with {fewer.split()[0]}", goodput / calm, "x", 2, bases=())
    for name, count in first_tries(outcome).items():
        add(name, count, bases=())
    if refused := [each.took for each in outcome.sent if each.status >= 400]:
        add("slowest refusal", max(refused), " s", 2, bases=())
    add("whole in the end", len(outcome.whole), bases=(), more_is_better=True)
    last = max((each.ended for each in outcome.whole), default=outcome.began)
    add("last one whole after", last - outcome.began, " s", 2)
    add("peak RSS of the workers", found.peak_rss, " MiB")
    if system.is_agentapp:
        lost = sum(count for status, count in found.statuses.items() if status != "completed")
        add("turns not completed in the database", lost, bases=())
    note_outcome(figures, f"{system.name}, {what}", outcome)


def first_tries(outcome: Outcome) -> dict[str, int]:
    firsts = {each.person: each for each in reversed(outcome.sent)}.values()
    return {
        "whole at first try": sum(not each.code for each in firsts),
        "refused at first try": sum(each.status >= 400 for each in firsts),
        "cut or failed at first try": sum(bool(each.code) and each.status < 400 for each in firsts),
    }
