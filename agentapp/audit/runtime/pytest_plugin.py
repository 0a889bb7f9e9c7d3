"""The pytest plugin with the fixture ``leak_watch``. No other module of the detector imports pytest.

To use it, write ``pytest_plugins = ["agentapp.audit.runtime.pytest_plugin"]`` in a conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from agentapp.audit.runtime.changes import Change
from agentapp.audit.runtime.watch import Snapshot, Watch


class Guard:
    """The result of `leak_watch`, with the changes so far."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._before: Snapshot = watch.snapshot()

    def changes(self) -> list[Change]:
        return self._watch.compare(self._before)


@pytest.fixture
def leak_watch() -> Iterator[Callable[..., Guard]]:
    """A function to call with names of packages.

    The test fails if a shared object of these packages has changed at its end, unless ``allow`` names it.
    """
    guards: list[Guard] = []

    def watch(*packages: str, allow: Iterable[str] = (), values: bool = False) -> Guard:
        chosen = Watch(packages, exclude=tuple(allow), values=values)
        missing = [name for name in packages if not Watch((name,)).modules()]
        if missing or not packages:
            raise LookupError(
                f"no module of {missing or 'any package'} is loaded: import it before you watch it"
            )
        guards.append(Guard(chosen))
        return guards[-1]

    yield watch
    changes = [change for guard in guards for change in guard.changes()]
    if changes:
        lines = "".join(f"\n  {change}" for change in dict.fromkeys(changes))
        pytest.fail(f"the test left changes in shared objects:{lines}", pytrace=False)
