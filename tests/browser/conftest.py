"""Two browsers for all tests: starting one takes seconds. `Page.anew` forgets who was signed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.support.browser import Page, browser


@pytest.fixture(scope="session")
def browsers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Page]]:
    """One with script and one without."""
    with ExitStack() as stack:

        @cache
        def make(script: bool) -> Page:
            return stack.enter_context(browser(tmp_path_factory.mktemp("browser"), script=script))

        yield make
