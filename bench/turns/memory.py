"""What the workers have in memory, idle and with 300 streams open, and how long the server takes to start."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bench.turns import processes
from bench.turns.figures import Figures, Row
from bench.turns.plain import note_outcome
from bench.turns.plans import Phase
from bench.turns.runs import run, workers
from bench.turns.samples import Samples
from bench.turns.systems import Running, System, Systems
from bench.turns.talk import PLAIN, STREAMED

SAMPLE_SECONDS = 0.5
STREAMS = 300


def most(samples: list[tuple[float, float]]) -> tuple[float, float]:
    return max((rss for rss, _ in samples), default=0.0), max((pss for _, pss in samples), default=0.0)


def measure(systems: Systems, system: System, figures: Figures) -> None:
    """The one request goes to one worker, and the server's first answer came from the same or the other."""
    events, memory = "text/event-stream", Samples[tuple[float, float]]()

    def watched(running: Running) -> AbstractContextManager[None]:
        def look() -> tuple[float, float]:
            pids = workers(running)
            return processes.rss(pids), processes.pss(pids)

        return memory.taken(look, SAMPLE_SECONDS)

    phases = [
        Phase("burst", PLAIN.message, PLAIN.reply, 1),
        Phase("burst", STREAMED.message, STREAMED.reply, STREAMS, accept=events, spread=1.0, pause=3.0),
    ]
    found = run(systems, system, phases, watch=watched)
    first, streams = found.outcomes
    idle = most(memory.between(first.ended, streams.began))
    with_streams = most(memory.between(streams.began, streams.ended))
    for name, (rss, pss) in {"idle": idle, f"{STREAMS} streams open": with_streams}.items():
        figures.add(system.name, Row(f"memory of the workers, {name}: RSS", " MiB", 0), rss)
        figures.add(system.name, Row(f"memory of the workers, {name}: PSS", " MiB", 0), pss)
    note_outcome(figures, f"{system.name}, {STREAMS} streams for their memory", streams)
    starts = {"start": found}
    if not system.postgres:
        starts["start, empty directory"] = run(systems, system, [], is_empty=True)
    for name, each in starts.items():
        figures.add(system.name, Row(f"{name}: until the first answer", " s", 2), each.started)
        figures.add(system.name, Row(f"{name}: CPU until then", " s", 2), each.start_cpu)
