"""What isolation costs: a fresh crew, a reset, a bound scope; each beside the making of one bare object.

    python bench/isolation.py

Everything is measured in one run, in turns, so that a busy machine disturbs all of it alike. What
counts is the ratio; the times are the medians of the rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from agentapp.agents.provider import Message
from agentapp.agents.shipped import team
from agentapp.isolation import ContextBinder, Scope, ThreadBinder
from agentapp.storage.db import Database

SCOPE = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s")
ROUNDS, CALLS = 200, 100


class Bare:
    def __init__(self, a: object, b: object) -> None:
        self.a, self.b = a, b


def bind_and_clear(binder: ThreadBinder | ContextBinder) -> Callable[[], None]:
    def run() -> None:
        with binder.bound(SCOPE):
            pass

    return run


def as_in_the_app() -> ThreadBinder:
    """With a scoped database session to be looked after at the end of every binding; nothing is opened."""
    binder = ThreadBinder()
    Database("sqlite:///never-opened.sqlite3", binder)
    return binder


def reset_used() -> Callable[[], None]:
    agent = team.build(SCOPE).front
    message = Message("user", ("hello",))

    def run() -> None:
        agent.add_messages(SCOPE, message)
        agent.reset()

    return run


def measured(jobs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds a call. The jobs take turns in every round."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            began = time.perf_counter()
            for _ in range(CALLS):
                job()
            times[name].append((time.perf_counter() - began) / CALLS)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    bare = "one bare object"
    medians = measured(
        {
            bare: lambda: Bare(SCOPE, SCOPE),
            "scope: make": lambda: Scope(request_id="r", tenant_id="t", user_id="u", session_id="s"),
            "scope: bind + clear, ThreadBinder (goal: 5 µs)": bind_and_clear(ThreadBinder()),
            "scope: bind + clear, ContextBinder (goal: 5 µs)": bind_and_clear(ContextBinder()),
            "scope: bind + clear, as in the app (goal: 5 µs)": bind_and_clear(as_in_the_app()),
            "agent: hear + reset (goal: 100 µs)": reset_used(),
            "crew: build 4 agents (goal: 1,000 µs)": lambda: team.build(SCOPE),
        }
    )
    print(f"{'':52}{'median':>12}{'bare objects':>14}")
    for name, seconds in medians.items():
        print(f"{name:52}{seconds * 1e6:>9.2f} µs{seconds / medians[bare]:>13.1f}x")


if __name__ == "__main__":
    main()
