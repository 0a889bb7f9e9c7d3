"""Notes in a wheel and in an sdist which commit they are made of, for `agentapp --version`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOLD = "AGENTAPP_BUILD_COMMIT"  # where the files are without git, as when an image is built


class NoteCommit(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """A checkout that is installed as it is notes nothing: it may be another commit tomorrow. Nor does a
        wheel that is made of an sdist, in which the file is already.
        """
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        try:
            from agentapp import build
        finally:
            sys.path.remove(self.root)
        root = Path(self.root)
        if told := os.environ.get(TOLD):
            text = told[: build.SHORT]
        elif commit := build.checked_out(root):
            text = _described(root, commit[: build.SHORT])
        else:
            return
        with tempfile.NamedTemporaryFile("w", prefix="agentapp-build-", delete=False) as note:
            note.write(f"{text}\n")
        self._note = Path(note.name)
        build_data["force_include"][note.name] = f"agentapp/{build.SHIPPED}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if note := getattr(self, "_note", None):
            note.unlink(missing_ok=True)


def _described(root: Path, commit: str) -> str:
    """With its day, and whether files differ from it, if git is installed: in a slim image it is not."""
    day = _git(root, "show", "--no-patch", "--format=%cs", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    if not day or changed is None:
        return commit
    return f"{commit}{'-dirty' if changed else ''}, {day}"


def _git(root: Path, *arguments: str) -> str | None:
    command = ("git", "--no-optional-locks", "-C", str(root), *arguments)
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
