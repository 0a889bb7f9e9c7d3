"""Waits for a database that is away, and says so now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import click

from agentapp.errors import DiskFull, StorageUnavailable
from agentapp.logs import escaped

TRY_SECONDS = 1.0
TELL_SECONDS = 60.0

T = TypeVar("T")


def wait_for_database(attempt: Callable[[], T]) -> T:
    """What the attempt gives, as soon as it does. What waiting does not change is raised."""
    began = time.monotonic()
    told_at: float | None = None
    while True:
        try:
            found = attempt()
        except DiskFull:
            raise
        except StorageUnavailable as error:
            now = time.monotonic()
            if told_at is None or now - told_at >= TELL_SECONDS:
                told_at = now
                _tell(f"waiting for the database for {now - began:.0f} s: {error}")
            time.sleep(TRY_SECONDS)
        else:
            if told_at is not None:
                _tell(f"the database is there after {time.monotonic() - began:.0f} s")
            return found


def _tell(text: str) -> None:
    click.echo(f"agentapp: {escaped(text)}", err=True)
