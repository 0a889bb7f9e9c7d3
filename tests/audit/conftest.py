"""Fixtures for the tests of the auditor."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentapp.audit import cache


@pytest.fixture(scope="session")
def digest_of_auditor() -> bytes:
    return cache._digest_of_sources(Path(cache.__file__).parent)


@pytest.fixture
def digest_once(digest_of_auditor: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the auditor's own source files once, not for every audit of a test."""
    monkeypatch.setattr(cache, "_digest_of_sources", lambda directory: digest_of_auditor)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest_once: None) -> Path:
    """An empty current directory, with a cache directory of its own."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return directory
