"""A peer gets a venv of its own when it is first measured, as ``NAME.txt`` beside this module pins it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
LONGEST_INSTALL = 900.0  # seconds
DONE = "installed"


class NotInstalled(Exception):
    """The peer cannot be measured, and why."""


def default_home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "agentapp-bench"


def installed(name: str, home: Path) -> Path:
    """Where the commands of the peer are; it is installed now if it is not there yet as it is pinned."""
    pins = HERE / f"{name}.txt"
    venv = home / f"{name}-{_digest(pins)}"
    if not (venv / DONE).exists():
        print(f"{name} is installed into {venv}", file=sys.stderr)
        try:
            _install(pins, venv)
        except (OSError, subprocess.SubprocessError) as exc:
            raise NotInstalled(f"not installed: {_reason(exc)}") from exc
    return venv / "bin"


def _digest(pins: Path) -> str:
    """Of all that the venv depends on: other pins or another Python get another one."""
    return sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]


def _install(pins: Path, venv: Path) -> None:
    """What an earlier try has left is thrown away. The mark at the end says that nothing is missing."""
    shutil.rmtree(venv, ignore_errors=True)
    venv.parent.mkdir(parents=True, exist_ok=True)
    _run(sys.executable, "-m", "venv", str(venv))
    pip = (str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
    _run(*pip, "install", "--requirement", str(pins))
    (venv / DONE).touch()


def _run(*command: str) -> None:
    subprocess.run(
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_INSTALL,
    )


def _reason(exc: OSError | subprocess.SubprocessError) -> str:
    """The last line of what was printed, or what happened."""
    printed = getattr(exc, "output", None)
    lines = printed.strip().splitlines() if isinstance(printed, str) else []
    return lines[-1] if lines else str(exc)
