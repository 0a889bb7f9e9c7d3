"""Nothing that several hosts compare, store or show goes by the clock of the host that happens to do it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.test_layers import MODULES

# Who may look at the host's clock, and what for.
MAY = {
    "storage.clock": "SQLite's time is this machine's, and how wrong the host's clock is has to be known",
    "guardrails.local": "breakers in the memory of a program that has no database",
    "agents.tool": "what a tool tells a model the time is",
    "agents.results": "when a span of a trace ended: the collector compares it with those of other services",
    "agents.tracing": "the same for its beginning",
    "agents.providers.anthropic.errors": "a Retry-After that is a date",
    "server.answering": "a line of the access log",
    "telemetry.webhook": "a signature is dated for the receiver, who compares it with a clock of its own",
}
OF_TIME = {"time", "time_ns", "gmtime", "localtime", "ctime", "CLOCK_REALTIME"}
OF_DATES = {"now", "utcnow", "today"}
OF_SQL = {"now", "current_timestamp", "current_date", "localtimestamp", "sysdate"}


def looks(tree: ast.Module) -> Iterator[str]:
    """Each look at the wall clock, as it is written. So is each default value that would look at it later."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (alias.name for alias in node.names if alias.name in OF_TIME)
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if node.attr in {"time": OF_TIME, "datetime": OF_DATES, "date": OF_DATES, "func": OF_SQL}.get(
            node.value.id, ()
        ):
            yield ast.unparse(node)


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("audit")])
def test_only_a_few_modules_look_at_the_hosts_clock(name: str) -> None:
    found = sorted(set(looks(MODULES[name])))
    assert bool(found) == (name in MAY), f"{name}: {found}"


def test_every_way_to_look_at_a_clock_is_seen() -> None:
    for line in (
        "time.time()",
        "x = field(default_factory=time.time_ns)",
        "from time import time",
        "time.clock_gettime(time.CLOCK_REALTIME)",
        "datetime.now(UTC)",
        "date.today()",
        "query.where(row.at < func.now())",
    ):
        assert list(looks(ast.parse(line))), line
    assert not list(looks(ast.parse("time.monotonic(); time.sleep(1); db.clock.now(); utc_now()")))
