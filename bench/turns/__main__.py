"""What a turn costs beside an app that only forwards it to the model, in one table.

python -m bench.turns [--quick] [--systems bare,naive,sqlite] [--what plain,burst]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from agentapp.instance import PRIVATE_UMASK
from bench.turns import burst, plain
from bench.turns.figures import Figures
from bench.turns.processes import allow_open_files
from bench.turns.systems import System, Systems

Measurement = Callable[[Systems, System, Figures], None]


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def measurements(options: argparse.Namespace) -> list[tuple[str, int, Measurement]]:
    """What is to be done, and how often."""
    chosen: list[tuple[str, int, Measurement]] = []
    if "plain" in options.what:
        for n in options.sessions:
            often = options.repeat if n in (32, 128) else 1
            one = partial(plain.measure, sessions=n, seconds=options.seconds)
            chosen.append((f"plain, {n} sessions", often, one))
    if "burst" in options.what:
        for n in options.at_once:
            one = partial(burst.measure, streams=n, comes_back=options.come_back or n >= 1000)
            chosen.append((f"{n} streams at once", options.repeat_burst, one))
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.turns", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--systems", default="bare,naive,sqlite")
    parser.add_argument("--what", default="plain,burst")
    parser.add_argument("--sessions", type=numbers, default=[1, 32, 128, 512])
    parser.add_argument("--at-once", type=numbers, default=[300, 500, 1000])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--repeat-burst", type=int, default=1)
    parser.add_argument("--come-back", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    allow_open_files()
    os.umask(PRIVATE_UMASK)
    with tempfile.TemporaryDirectory(prefix="agentapp-bench-") as home, ExitStack() as held:
        systems = Systems(Path(home), held)
        made = [systems.make(name) for name in options.systems.split(",")]
        figures = Figures([system.name for system in made])
        try:
            for what, often, measure in measurements(options):
                for n in range(often):
                    for system in made:
                        began = time.monotonic()
                        measure(systems, system, figures)
                        print(
                            f"{what}, {n + 1} of {often}: {system.name} {time.monotonic() - began:.0f} s",
                            file=sys.stderr,
                        )
        finally:
            print(figures.table())


if __name__ == "__main__":
    main()
