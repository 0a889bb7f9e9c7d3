"""Streams while there is room: so many, begun within a second on a server that has answered before."""

from __future__ import annotations

from bench.turns.figures import Figures, Row
from bench.turns.plain import note_outcome
from bench.turns.plans import Phase
from bench.turns.runs import at, run
from bench.turns.systems import System, Systems
from bench.turns.talk import PLAIN, STREAMED

FIRST_ONES = 32  # messages before them


def measure(systems: Systems, system: System, figures: Figures, streams: int) -> None:
    events = "text/event-stream"
    phases = [
        Phase("burst", PLAIN.message, PLAIN.reply, FIRST_ONES),
        Phase("burst", STREAMED.message, STREAMED.reply, streams, accept=events, spread=1.0, pause=1.0),
    ]
    _, outcome = run(systems, system, phases).outcomes
    what, count = f"{streams} streams: ", max(1, len(outcome.whole))
    times = [each.took for each in outcome.whole]
    firsts = [each.first for each in outcome.whole if each.first is not None]
    figures.add(system.name, Row(what + "CPU a turn", " ms"), outcome.cpu * 1000 / count)
    figures.add(system.name, Row(what + "whole", "", 0, True, ()), len(outcome.whole))
    figures.add(system.name, Row(what + "p50 of the first event", " s", 3), at(firsts, 0.5))
    figures.add(system.name, Row(what + "p50", " s", 2), at(times, 0.5))
    figures.add(system.name, Row(what + "p99", " s", 2), at(times, 0.99))
    note_outcome(figures, f"{system.name}, {what.removesuffix(': ')}", outcome)
