"""Plain turns: a message, an instant answer of 20 words, as JSON, from so many sessions at once.

Phases on a fresh server: everybody's first message at the moment the server first answers (cold); then
everybody sends again as soon as the answer is there; then everybody's message at one moment again (warm).
"""

from __future__ import annotations

import os

from bench.turns.figures import BARE, Figures, Row
from bench.turns.plans import Outcome, Phase
from bench.turns.runs import Run, at, codes, run
from bench.turns.seen_on_postgres import SeenOnPostgres
from bench.turns.systems import RATES_OFF, System, Systems
from bench.turns.talk import PLAIN

WARM_UP_SECONDS = 1.0


def measure(systems: Systems, system: System, figures: Figures, sessions: int, seconds: float) -> None:
    said = (PLAIN.message, PLAIN.reply, sessions)
    settles = system.peer.settles if system.peer else 0.0
    phases = [
        Phase("burst", *said),
        Phase("loop", *said, seconds=seconds, warm_up=WARM_UP_SECONDS, pause=settles),
        Phase("burst", *said, pause=0.5),
    ]
    seen = SeenOnPostgres(system)
    found = run(systems, system, phases, RATES_OFF, watch=seen.watched)
    what = f"plain, {sessions} session{'s' if sessions > 1 else ''}: "
    add_figures(figures, system.name, what, found)
    cold, loop, warm = found.outcomes
    if sessions > 1:
        bursts = {"cold": cold, "warm": warm}
        for name, outcome in bursts.items():
            row = Row(f"{what}{name} burst, last answer", " s", 2)
            figures.add(system.name, row, outcome.seconds)
    for name, value in seen.between(loop.began, loop.ended, len(loop.whole)).items():
        figures.add(system.name, Row(what + name, "", 2, bases=()), value)
    for name, outcome in (("cold burst", cold), ("loop", loop), ("warm burst", warm)):
        note_outcome(figures, f"{system.name}, {what}{name}", outcome)


def add_figures(figures: Figures, system: str, what: str, found: Run) -> None:
    loop = found.outcomes[1]
    times, count = [each.took * 1000 for each in loop.whole], max(1, len(loop.whole))
    bases = (BARE, "sqlite", "postgres", "redis")
    figures.add(
        system, Row(what + "turns/s", more_is_better=True, bases=bases), len(loop.whole) / loop.seconds
    )
    figures.add(system, Row(what + "CPU a turn", " ms", 2), loop.cpu * 1000 / count)
    if loop.database_cpu:
        row = Row(what + "CPU of PostgreSQL a turn", " ms", 2, bases=())
        figures.add(system, row, loop.database_cpu * 1000 / count)
    figures.add(system, Row(what + "p50", " ms"), at(times, 0.5))
    figures.add(system, Row(what + "p99", " ms"), at(times, 0.99))
    figures.add(system, Row(what + "peak RSS of the workers", " MiB", 0), found.peak_rss)


def note_outcome(figures: Figures, what: str, outcome: Outcome) -> None:
    """What was not answered whole, and how much else the machine had to do."""
    figures.disturbed.append(outcome.others_cpu / outcome.seconds / (os.cpu_count() or 1))
    if wrong := codes(outcome):
        figures.note(f"{what}: of {len(outcome.sent)} not whole: {wrong}")
