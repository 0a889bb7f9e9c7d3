"""Which agentapp this is: its version, and the commit that it was built from.

A wheel and an sdist carry a file that says it (`hatch_build.py` makes that). In a checkout git's own files
say which commit is checked out, without git and without a look at what has been changed since.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from agentapp import __version__

SHIPPED: Final = "_shipped/build"
SHORT: Final = 7  # digits of a commit

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def described(package: Path) -> str:
    """In brackets after the version. What is not known is not guessed."""
    try:
        return "build " + (package / SHIPPED).read_text().strip()
    except OSError:
        commit = checked_out(package.parent)
        return f"checkout {commit[:SHORT]}" if commit else "build unknown"


def checked_out(root: Path) -> str | None:
    """The commit whose files are there, if it is a checkout."""
    try:
        git = _git_directory(root / ".git")
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        commit = head if name == head else _commit_of(_common_directory(git), name)
    except (OSError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _git_directory(place: Path) -> Path:
    """In a worktree and a submodule it is a file that says where the directory is."""
    if place.is_dir():
        return place
    return place.parent / place.read_text().strip().removeprefix("gitdir: ")


def _common_directory(git: Path) -> Path:
    """Where the branches of all worktrees are."""
    shared = git / "commondir"
    return git / shared.read_text().strip() if shared.exists() else git


def _commit_of(git: Path, branch: str) -> str:
    if (git / branch).is_file():
        return (git / branch).read_text().strip()
    for line in (git / "packed-refs").read_text().splitlines():
        commit, _, name = line.partition(" ")
        if name == branch:
            return commit
    return ""


# Read when this module is imported, and so together with the code: a worker that takes the place of another
# one runs the code that the master has imported, even if other files lie there by now.
NAME: Final = f"{__version__} ({described(Path(__file__).parent)})"
