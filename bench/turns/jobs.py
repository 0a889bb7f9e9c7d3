"""What is measured of which systems, and how often."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.turns import burst, locks, memory, plain, streams
from bench.turns.figures import Figures
from bench.turns.systems import System, Systems

MOST_REPEATED = (32, 128)
COME_BACK_FROM = 1000


@dataclass(frozen=True)
class Job:
    name: str
    often: int
    measure: Callable[[Systems, System, Figures], None]
    systems: Callable[[System], bool]


def jobs(options: argparse.Namespace) -> list[Job]:
    what, found = options.what.split(","), []
    sessions = dict.fromkeys(options.sessions if "plain" in what else [])
    if "postgres" in what:
        sessions.setdefault(32)
    for n in sorted(sessions):
        on_line = n == 32 and "postgres" in what
        chosen = _all if on_line and "plain" in what else _agentapp if on_line else _direct
        measure = partial(plain.measure, sessions=n, seconds=options.seconds)
        often = options.repeat if n in MOST_REPEATED else options.repeat_others
        found.append(Job(f"plain, {n} sessions", often, measure, chosen))
    for n in options.sessions if "locks" in what else ():
        measure = partial(locks.measure, sessions=n, seconds=options.seconds)
        found.append(Job(f"locks, {n} sessions", options.repeat_others, measure, _on_postgres))
    others: list[tuple[str, Callable[..., None]]] = []
    if "streams" in what:
        others += [(f"{n} streams", partial(streams.measure, streams=n)) for n in options.streams]
    if "burst" in what:
        for n in options.at_once:
            comes_back = options.come_back or n >= COME_BACK_FROM
            measure = partial(burst.measure, streams=n, comes_back=comes_back)
            others.append((f"{n} streams at once", measure))
    if "memory" in what:
        others.append(("memory", memory.measure))
    found += [Job(name, options.repeat_others, measure, _whole) for name, measure in others]
    return found


def _all(system: System) -> bool:
    return True


def _direct(system: System) -> bool:
    return system.link is None


def _on_postgres(system: System) -> bool:
    return system.postgres is not None and system.link is None


def _agentapp(system: System) -> bool:
    return system.is_agentapp


def _whole(system: System) -> bool:
    """What is measured in all that there is to measure, and not only for plain turns."""
    return _direct(system) and system.name != "naive" and system.peer is None
