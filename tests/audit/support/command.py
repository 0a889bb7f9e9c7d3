"""Writes files to audit and runs the command on them, also on a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from click.testing import CliRunner, Result

from agentapp.cli import main
from tests.support.server import TIMEOUT_SECONDS

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


def audit(*args: str, exit_code: int | None = None, charset: str = "utf-8") -> Result:
    result = CliRunner(charset=charset).invoke(main, ["audit", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert exit_code is None or result.exit_code == exit_code, result.output
    return result


def findings(*args: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(audit(*args, "--format", "json").stdout)
    return items


def reported(*args: str) -> list[str]:
    """Each finding as ``path:line rule``."""
    return [f"{item['path']}:{item['line']} {item['rule']}" for item in findings(*args)]


def changing_module(module: str) -> str:
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
    """What the command wrote: ``terminal`` is what came through the terminal, ``piped`` the other stream."""

    exit_code: int
    terminal: str
    piped: str


def run_on_terminal(*args: str, stream: str) -> Shown:
    """Run the command with a terminal as one stream (stdout or stderr) and a pipe as the other."""
    ours, theirs = os.openpty()
    piped = io.StringIO()
    received: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(ours, received))
    reader.start()
    to_terminal = redirect_stdout if stream == "stdout" else redirect_stderr
    to_pipe = redirect_stderr if stream == "stdout" else redirect_stdout
    with open(theirs, "w", encoding="utf-8") as terminal, to_terminal(terminal), to_pipe(piped):
        try:
            main(["audit", *args])
        except SystemExit as exc:
            exit_code = exc.code
    reader.join(TIMEOUT_SECONDS)
    os.close(ours)
    assert isinstance(exit_code, int)
    return Shown(exit_code, b"".join(received).decode().replace("\r\n", "\n"), piped.getvalue())


def _read_all(terminal: int, received: list[bytes]) -> None:
    with suppress(OSError):  # Linux raises it when the other end is closed.
        while part := os.read(terminal, 65536):
            received.append(part)
