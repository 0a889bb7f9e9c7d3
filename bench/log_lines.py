"""What the log costs: a line by itself, and a turn with its lines beside the same turn without them.

    python -m bench.log_lines

Everything in one process and in turns, so that a busy machine disturbs all of it alike. CPU time, with
garbage and all; the lines go to a file.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flask import Flask, g

from agentapp.isolation import Scope, ThreadBinder
from agentapp.telemetry import bound_records
from agentapp.telemetry.log_lines import LineFormatter
from agentapp.web.access_lines import write_access_line
from bench.turns.parts import running_app, send_all
from bench.turns.people import add_people

SCOPE = Scope(request_id="r" * 22, tenant_id="t" * 22, user_id="u" * 22, session_id="s" * 22)
ROUNDS, LINES, TURNS, WARM_UP_TURNS = 15, 500, 40, 50
OURS = logging.getLogger("agentapp")


@contextmanager
def written(file: Path, line_format: str, level: str) -> Iterator[None]:
    """As in a worker."""
    handler = logging.FileHandler(file)
    handler.setFormatter(LineFormatter(line_format))
    OURS.addHandler(handler)
    OURS.setLevel(level)
    OURS.propagate = False
    try:
        yield
    finally:
        OURS.removeHandler(handler)
        handler.close()


def seconds(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def of_a_line(app: Flask, file: Path, line_format: str) -> float:
    binder: ThreadBinder = app.extensions["agentapp"].binder

    def write() -> None:
        for _ in range(LINES):
            write_access_line(began, is_quiet=False)

    with written(file, line_format, "INFO"), app.test_request_context("/login"), binder.bound(SCOPE):
        began, g.status, g.turn_id = time.perf_counter(), 200, "n" * 22
        return statistics.median(seconds(write) for _ in range(ROUNDS)) / LINES


def of_turns(home: Path, file: Path, rounds: int) -> dict[str, float]:
    (person,) = add_people(home / "instance", count=1)
    taken: dict[str, list[float]] = {"WARNING": [], "INFO": []}
    with running_app(home) as app:
        send_all(app, person, WARM_UP_TURNS)
        for n in range(rounds):
            # In turns who is first: a chat grows, and a turn in a long one takes longer.
            for level in sorted(taken, reverse=bool(n % 2)):
                with written(file, "json", level):
                    taken[level].append(seconds(lambda: send_all(app, person, TURNS)) / TURNS)
    return {level: statistics.median(found) for level, found in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds: int = parser.parse_args().rounds
    bound_records.make_records()
    with tempfile.TemporaryDirectory(prefix="agentapp-log-") as directory:
        home, file = Path(directory), Path(directory) / "log"
        turns = of_turns(home, file, rounds)
        lines = len(file.read_text().splitlines()) / (rounds * TURNS)
        with running_app(home) as app:
            for line_format in ("json", "console"):
                print(f"an access line, {line_format:8}{of_a_line(app, file, line_format) * 1e6:8.1f} µs")
    without, whole = turns["WARNING"], turns["INFO"]
    print(f"a turn without lines     {without * 1e6:8,.0f} µs")
    print(f"with {lines:.1f} lines           {whole * 1e6:8,.0f} µs, {(whole - without) / without:+.1%}")


if __name__ == "__main__":
    main()
