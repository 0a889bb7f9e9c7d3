"""The cache of verdicts on whole trees, keyed by the content of every file. It may be deleted at any time."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_TREES = 20  # How many verdicts are kept; the least recently used are deleted.


def place() -> Path:
    """The directory of the cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "agentapp", "audit")


def key_of(files: Iterable[tuple[str, str, bytes]]) -> str:
    """The key of a tree: path, module name and content of each file, and the auditor itself."""
    digest = hashlib.sha256(f"{sys.version_info[:3]}".encode())
    digest.update(_digest_of_sources(Path(__file__).parent))
    for path, module, content in sorted(files):
        _feed(digest, path.encode("utf-8", "surrogateescape"), module.encode(), content)
    return digest.hexdigest()


def _digest_of_sources(directory: Path) -> bytes:
    """Digest the auditor's own source files: another version may judge differently."""
    digest = hashlib.sha256()
    for source in sorted(directory.rglob("*.py")):
        _feed(digest, str(source.relative_to(directory)).encode(), source.read_bytes())
    return digest.digest()


def _feed(digest: Any, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)


def load(directory: Path, key: str) -> Any:
    """The verdict that was kept, or None. A damaged file counts as missing."""
    try:
        with open(directory / f"{key}.json", encoding="utf-8") as file:
            found = json.load(file)
        os.utime(directory / f"{key}.json")
    except (OSError, ValueError):
        return None
    return found


def keep(directory: Path, key: str, value: Any) -> None:
    """Store a verdict. The file is written elsewhere and then moved, so that no reader sees half of it."""
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=directory, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(name, directory / f"{key}.json")
        _tidy(directory)


def _tidy(directory: Path) -> None:
    found = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in found[MAX_TREES:]:
        old.unlink()
