"""Trees of files to audit, and the command run on them: in this process, in another, and on a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from click.testing import CliRunner, Result

from agentapp.cli import main
from tests.serving import DEADLINE, SCRIPTS, clean_env

SCHEMA = json.loads((Path(__file__).parent / "sarif-schema-2.1.0.json").read_text())
STATE = "HISTORY = []\n"
SUMMARY = re.compile(r"(\d+) files?, (\d+) findings?, (\d+) suppressed")
SHARED = "HISTORY = []\n\n\ndef chat(text):\n    HISTORY.append(text)\n"
CLEAN = "def chat(history, text):\n    return [*history, text]\n"


def write(directory: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def audit(*args: str, exit_code: int | None = None) -> Result:
    result = CliRunner().invoke(main, ["audit", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert exit_code is None or result.exit_code == exit_code, result.output
    return result


def found(*args: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(audit(*args, "--format", "json").stdout)
    return items


def told(*args: str) -> list[str]:
    """Each finding as ``path:line rule``."""
    return [f"{item['path']}:{item['line']} {item['rule']}" for item in found(*args)]


def changes(module: str) -> str:
    return f"from {module} import HISTORY\n\n\ndef view(text):\n    HISTORY.append(text)\n"


def summary(text: str) -> tuple[int, ...]:
    matched = SUMMARY.match(text.splitlines()[-1])
    assert matched, text
    return tuple(map(int, matched.groups()))


def configure(here: Path, table: str) -> None:
    (here / "pyproject.toml").write_text(f"[tool.agentapp.audit]\n{table}\n")


def valid_sarif(text: str) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(text)
    jsonschema.Draft4Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(log)
    return log


@dataclass(frozen=True)
class Shown:
    """What a process wrote: ``terminal`` is what came through the terminal, ``piped`` the other stream."""

    exit_code: int
    terminal: str
    piped: str


def on_terminal(*args: str, directory: Path, stream: str, env: Mapping[str, str] | None = None) -> Shown:
    """The command in a process of its own, of which one stream (stdout or stderr) is a terminal."""
    ours, theirs = os.openpty()
    other = "stderr" if stream == "stdout" else "stdout"
    environ = clean_env(**{"TERM": "xterm", **(env or {})})
    if "NO_COLOR" not in (env or {}):
        environ.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [SCRIPTS / "agentapp", "audit", *args],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        **{stream: theirs, other: subprocess.PIPE},  # type: ignore[call-overload]
    )
    os.close(theirs)
    terminal = b""
    with suppress(OSError):  # how Linux says that nobody has the other end any more
        while part := os.read(ours, 65536):
            terminal += part
    os.close(ours)
    piped = process.communicate(timeout=DEADLINE)[other == "stderr"]
    return Shown(process.returncode, terminal.decode().replace("\r\n", "\n"), piped.decode())
