"""What the tests of the commands have in common."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

PASSWORD = "correct horse"

Agentapp = Callable[..., Result]


def add_user(agentapp: Agentapp, name: str, *options: str) -> Result:
    return agentapp("user", "add", name, *options, "--password-stdin", stdin=f"{PASSWORD}\n")
