"""Fixtures for the tests of the run-time detector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.audit.support.sites import HEAD, TAIL, Imports, Site


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imports]:
    directory = tmp_path / "src"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    imports = Imports(directory)
    yield imports
    imports.forget()


@pytest.fixture
def site(imported: Imports) -> Callable[..., Site]:
    def make(source: str, more: dict[str, str] | None = None, **options: Any) -> Site:
        return Site(imported(HEAD + source + TAIL, **(more or {})), **options)

    return make
