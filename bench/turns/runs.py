"""One measurement: a fresh server, the load, and what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.turns import processes
from bench.turns.load import Outcome, Phase, Plan, read_outcomes
from bench.turns.systems import ROOT, Running, System, Systems

LONGEST_LOAD = 400.0


@dataclass(frozen=True)
class Run:
    outcomes: list[Outcome]
    peak_rss: float  # MiB, of the workers
    statuses: Mapping[str, int]  # how many turns ended how, as the database says


def run(
    systems: Systems,
    system: System,
    phases: Sequence[Phase],
    env: Mapping[str, str] | None = None,
    meanwhile: Callable[[Running, subprocess.Popen[str]], None] | None = None,
) -> Run:
    """The phases one after the other, the first at the moment at which the server first answers.

    ``meanwhile`` is called when the load has begun; it should return when the load has ended.
    """
    with systems.serving(system, env or {}) as running:
        most = max(phase.people for phase in phases)
        plan = Plan(running.port, running.pid, system.ready_path, system.people[:most], list(phases))
        outcomes = _run_load(plan, running, meanwhile)
        return Run(outcomes, processes.peak_rss(workers(running)), systems.statuses(system, running))


def _run_load(
    plan: Plan,
    running: Running,
    meanwhile: Callable[[Running, subprocess.Popen[str]], None] | None,
) -> list[Outcome]:
    command = [sys.executable, "-m", "bench.turns.load"]
    load = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert load.stdin
    try:
        load.stdin.write(json.dumps(asdict(plan)))
        load.stdin.close()
        load.stdin = None
        if meanwhile:
            meanwhile(running, load)
        printed, _ = load.communicate(timeout=LONGEST_LOAD)
    finally:
        load.kill()
        load.wait()
    if load.returncode:
        raise SystemExit(
            f"the load ended with {load.returncode}. The server said:\n{running.output()[-3000:]}"
        )
    return read_outcomes(printed)


def workers(running: Running) -> list[int]:
    """All of the server's processes but the first, which only watches over the others."""
    return [pid for pid in processes.of_group(running.pid) if pid != running.pid]


def at(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] if times else float("nan")


def codes(outcome: Outcome) -> str:
    """What was not whole, by what it was told."""
    counted = Counter(f"{each.status or 'no status'} {each.code}" for each in outcome.sent if each.code)
    return ", ".join(f"{count} x {code}" for code, count in counted.most_common(4))
