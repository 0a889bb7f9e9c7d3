"""Hosts that are restarted one after the other while people go on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Literal

from tests.support.hosts import Host, Hosts
from tests.support.steady_users import Crowd, Tried, at_it, kept_otherwise

Way = Literal["documented", "plain"]
# A host that nginx has left out is tried again after this: `fail_timeout` in deploy/nginx.
LEFT_OUT_SECONDS = 2.0
MESSAGES_BETWEEN = 8  # so that each host is seen at work before the next one is stopped


def restart(hosts: Hosts, host: Host, way: Way) -> float:
    """As docs/operations.md has it: with nginx told before, or by SIGTERM alone. How long it took to end."""
    if way == "documented":
        hosts.proxy.take_out(host.address)
    began = time.monotonic()
    code = host.stop()
    took = time.monotonic() - began
    assert code == 0, f"exit code {code}: {host.output()[-2000:]}"
    host.start(wait=False)
    host.wait_until_up("/readyz")
    if way == "documented":
        hosts.proxy.put_in(host.address)
    else:
        time.sleep(LEFT_OUT_SECONDS + 0.5)
    return took


def roll(
    hosts: Hosts,
    database: str,
    ways: tuple[Way, ...],
    count: int,
    *,
    senders: int = 8,
    readers: int = 4,
    clickers: int = 8,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[Tried, list[str], list[float]]:
    """All hosts, so many times, in these ways in turn. Returns what people tried, what is kept otherwise, and
    how long each host took to end.
    """
    took: list[float] = []
    with at_it(hosts.url, database, senders=senders, readers=readers, clickers=clickers) as crowd:
        wait_for_messages(crowd)
        for number in range(count):
            for host, way in zip(hosts, itertools.cycle(ways), strict=False):
                took.append(restart(hosts, host, way))
                wait_for_messages(crowd)
            tried = crowd.tried
            tell(f"{number + 1} of {count}: {tried.done.total():,} tried, {len(tried.failed):,} failed")
    return crowd.tried, kept_otherwise(database, crowd.tried), took


def wait_for_messages(crowd: Crowd) -> None:
    wanted, end = crowd.messages + MESSAGES_BETWEEN, time.monotonic() + 60
    while crowd.messages < wanted:
        assert time.monotonic() < end, f"nobody is answered: {crowd.tried.failed[-3:]}"
        time.sleep(0.02)
