"""Plain turns: a message, an instant answer of 20 words, as JSON, from so many sessions at once.

Three phases on a fresh server: everybody's first message at the moment the server first answers (cold); then
everybody sends again as soon as the answer is there; then everybody's message at one moment again (warm).
"""

from __future__ import annotations

from bench.turns.figures import Figures, Row
from bench.turns.load import Outcome, Phase
from bench.turns.runs import at, codes, run
from bench.turns.systems import RATES_OFF, System, Systems
from bench.turns.talk import PLAIN

WARM_UP_SECONDS = 1.0


def measure(systems: Systems, system: System, figures: Figures, sessions: int, seconds: float) -> None:
    burst = Phase("burst", PLAIN.message, PLAIN.reply, sessions)
    phases = [
        burst,
        Phase("loop", PLAIN.message, PLAIN.reply, sessions, seconds=WARM_UP_SECONDS),
        Phase("loop", PLAIN.message, PLAIN.reply, sessions, seconds=seconds),
        Phase("burst", PLAIN.message, PLAIN.reply, sessions, pause=0.5),
    ]
    found = run(systems, system, phases, RATES_OFF)
    cold, _, loop, warm = found.outcomes
    what = f"plain, {sessions} session{'s' if sessions > 1 else ''}: "
    times = [each.took * 1000 for each in loop.whole]
    in_time = [each for each in loop.whole if each.at + each.took <= seconds]
    count = max(1, len(loop.whole))
    figures.add(system.name, Row(what + "turns/s", more_is_better=True), len(in_time) / seconds)
    figures.add(system.name, Row(what + "CPU a turn", " ms", 2), loop.cpu * 1000 / count)
    figures.add(system.name, Row(what + "p50", " ms"), at(times, 0.5))
    figures.add(system.name, Row(what + "p99", " ms"), at(times, 0.99))
    if sessions > 1:
        figures.add(system.name, Row(what + "peak RSS of the workers", " MiB", 0), found.peak_rss)
        figures.add(system.name, Row(what + "cold burst, last answer", " s", 2), cold.seconds)
        figures.add(system.name, Row(what + "warm burst, last answer", " s", 2), warm.seconds)
    for name, outcome in (("cold burst", cold), ("loop", loop), ("warm burst", warm)):
        note_wrong(figures, f"{system.name}, {what}{name}", outcome)


def note_wrong(figures: Figures, what: str, outcome: Outcome) -> None:
    if wrong := codes(outcome):
        figures.note(f"{what}: of {len(outcome.sent)} not whole: {wrong}")
