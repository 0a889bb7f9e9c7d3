"""For pytest: ``pytest_plugins = ["agentapp.audit.runtime.pytest_plugin"]``, and the fixture ``leak_watch``.

The only module of the detector that imports pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from agentapp.audit.runtime.changes import Change
from agentapp.audit.runtime.watch import Snapshot, Watch


class Guard:
    """What `leak_watch` gives: the changes so far, for a test that wants to look at them itself."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._before: Snapshot = watch.snapshot()

    def changes(self) -> list[Change]:
        return self._watch.compare(self._before)


@pytest.fixture
def leak_watch() -> Iterator[Callable[..., Guard]]:
    """Call it with the names of packages. The test fails if something shared of theirs has changed when it
    ends, except for what ``allow`` names.
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
