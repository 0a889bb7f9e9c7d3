"""One measurement: a fresh server, the load, and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from bench.turns import processes
from bench.turns.plans import Outcome, Phase, Plan, Report, read_report
from bench.turns.processes import ROOT
from bench.turns.systems import Running, System, Systems

LONGEST_LOAD = 400.0
Watch = Callable[[Running], AbstractContextManager[Any]]


class RunFailed(Exception):
    """The load could not be sent, and the end of what the server has printed."""


@dataclass(frozen=True)
class Run:
    started: float  # seconds from the start of the server to its first answer
    start_cpu: float  # seconds of CPU that it took until then
    outcomes: list[Outcome]
    peak_rss: float  # MiB, of the workers
    statuses: Mapping[str, int]  # how many turns ended how, as the database says


def run(
    systems: Systems,
    system: System,
    phases: Sequence[Phase],
    env: Mapping[str, str] | None = None,
    *,
    watch: Watch = nullcontext,
    is_empty: bool = False,
) -> Run:
    """The phases one after the other, the first at the moment at which the server first answers.

    ``watch`` makes of the server what is to be entered while the load is sent.
    """
    with systems.serving(system, env or {}, is_empty=is_empty) as running:
        most = max((phase.people for phase in phases), default=0)
        plan = Plan(
            running.ports,
            os.getpid(),
            running.pid,
            running.database_pid,
            system.ready_path,
            system.people[:most],
            list(phases),
            system.way,
        )
        with watch(running):
            report = _run_load(plan, running)
        return Run(
            report.up_at - running.began,
            report.start_cpu,
            report.outcomes,
            processes.peak_rss(workers(running)),
            {} if is_empty else running.statuses(),
        )


def _run_load(plan: Plan, running: Running) -> Report:
    command = [sys.executable, "-m", "bench.turns.load"]
    load = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the bench, which ends it
    )
    try:
        printed, _ = load.communicate(json.dumps(asdict(plan)), timeout=LONGEST_LOAD)
    except subprocess.TimeoutExpired:
        printed = ""
    finally:
        load.kill()
        load.wait()
    if load.returncode:
        raise RunFailed(f"the load ended with {load.returncode}; the server said: {running.output()[-2000:]}")
    return read_report(printed)


def workers(running: Running) -> list[int]:
    """All of the server's processes but the first, which only watches over the others, if there are any."""
    others = [pid for pid in processes.of_group(running.pid) if pid != running.pid]
    return others or [running.pid]


def at(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] if times else float("nan")


def codes(outcome: Outcome) -> str:
    """What was not whole, by what it was told."""
    counted = Counter(f"{each.status or 'no status'} {each.code}" for each in outcome.sent if each.code)
    return ", ".join(f"{count} x {code}" for code, count in counted.most_common(4))
