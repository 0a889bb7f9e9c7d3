"""The release before this one, from git's history: its code is run against the schema of this one.

With each release, this is set to the commit of the one before.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

COMMIT = "2b4aa39f837b48526d2a067ee7b098bc87db3dcf"
HEAD = "0011"  # its newest revision

ROOT = Path(__file__).parents[2]


def unpack_previous_release(directory: Path) -> Path:
    """Its files, in that directory. An sdist has no history: then the test is skipped."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("these files are no git checkout, or git is not installed: there is no release before")
    archive = subprocess.run(("git", "-C", ROOT, "archive", COMMIT), capture_output=True, check=False)
    if archive.returncode:
        said = archive.stderr.decode()
        pytest.fail(f"the release before is not in this clone (git fetch --unshallow): {said}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory
