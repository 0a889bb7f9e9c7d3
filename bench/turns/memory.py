"""What the workers have in memory, idle and with 300 streams open, and how long the server takes to start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.turns import processes
from bench.turns.figures import Figures, Row
from bench.turns.load import Phase
from bench.turns.plain import note_wrong
from bench.turns.runs import run, workers
from bench.turns.systems import Running, System, Systems
from bench.turns.talk import PLAIN, STREAMED

SAMPLE_SECONDS = 0.5
STREAMS = 300


@dataclass
class Memory:
    """(when, RSS, PSS), in MiB, of all workers together."""

    samples: list[tuple[float, float, float]] = field(default_factory=list)

    @contextmanager
    def sampled(self, running: Running) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._sample, args=(running, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _sample(self, running: Running, over: threading.Event) -> None:
        while not over.wait(SAMPLE_SECONDS):
            pids = workers(running)
            self.samples.append((time.monotonic(), processes.rss(pids), processes.pss(pids)))

    def most_between(self, began: float, ended: float) -> tuple[float, float]:
        found = [(rss, pss) for at, rss, pss in self.samples if began <= at <= ended]
        return max((rss for rss, _ in found), default=0.0), max((pss for _, pss in found), default=0.0)


def measure(systems: Systems, system: System, figures: Figures) -> None:
    """The one request goes to one worker, and the server's first answer came from the same or the other."""
    events, memory = "text/event-stream", Memory()
    phases = [
        Phase("burst", PLAIN.message, PLAIN.reply, 1),
        Phase("burst", STREAMED.message, STREAMED.reply, STREAMS, accept=events, spread=1.0, pause=3.0),
    ]
    found = run(systems, system, phases, watch=memory.sampled)
    first, streams = found.outcomes
    idle = memory.most_between(first.ended, streams.began)
    with_streams = memory.most_between(streams.began, streams.ended)
    for name, (rss, pss) in {"idle": idle, f"{STREAMS} streams open": with_streams}.items():
        figures.add(system.name, Row(f"memory of the workers, {name}: RSS", " MiB", 0), rss)
        figures.add(system.name, Row(f"memory of the workers, {name}: PSS", " MiB", 0), pss)
    note_wrong(figures, f"{system.name}, {STREAMS} streams for their memory", streams)
    figures.add(system.name, Row("start to first answer", " s", 2), found.started)
    if not system.postgres:
        empty = run(systems, system, [], is_empty=True)
        figures.add(system.name, Row("start to first answer, empty directory", " s", 2), empty.started)
