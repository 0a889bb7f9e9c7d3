"""Runs of pytest in forks of a process that has imported the libraries already.

The process reads directories and tests, and tells how each run ended; the rest is in ``output.txt``.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

NOT_OURS = (
    "alembic.autogenerate",
    "alembic.command",
    "anthropic",
    "argon2",
    "flask",
    "flask_login",
    "flask_wtf",
    "hypothesis.stateful",
    "markdown_it",
    "nh3",
    "psycopg",
    "pygments.formatters.html",
    "pytest",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.orm",
)
# Variables that name what the runs need not make for themselves: an empty database, compiled templates.
MIGRATED, COMPILED = "MIGRATED_SQLITE_FILE", "COMPILED_PAGES"
SECONDS = 60  # for one test, which should need one or two


class ForkedPytest:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, directory: Path, test: str) -> tuple[int, str]:
        """One test of the tree in that directory: the exit code of pytest, and everything that it said."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(directory), test]) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return code, (directory / "output.txt").read_text()


@contextmanager
def forked_pytest(home: Path, sqlite_template: Path) -> Iterator[ForkedPytest]:
    env = {"PATH": "", "HOME": str(home), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env |= {MIGRATED: str(sqlite_template), COMPILED: str(home)}
    command = [sys.executable, "-P", __file__]
    with subprocess.Popen(
        command, cwd=home, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield ForkedPytest(process)
        assert process.stdin is not None
        process.stdin.close()


def main() -> None:
    for name in NOT_OURS:
        import_module(name)
    gc.freeze()  # or every run would look through all of it for garbage
    for line in sys.stdin:
        directory, test = json.loads(line)
        child = os.fork()
        if child == 0:
            run(directory, test)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def run(directory: str, test: str) -> None:
    import pytest

    os.chdir(directory)
    with open("output.txt", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path.insert(0, directory)
    sys.dont_write_bytecode = False
    options = {"addopts": "", "markers": "xdist_group: not here", "timeout": SECONDS}
    settings = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    code = pytest.main([
        test, *settings, "-x", "-q", "--tb=short", f"--basetemp={directory}/temp",
        "-p", "pytest_timeout", "-p", "no:cacheprovider",
    ])  # fmt: skip
    ours = [name for name in sys.modules if name.partition(".")[0] in ("agentapp", "tests")]
    where = {(sys.modules[name].__file__ or directory).startswith(directory) for name in ours}
    sys.stdout.flush()
    atexit._run_exitfuncs()  # and no more: to take everything apart takes longer than the test
    os._exit(code if where == {True} else 99)


if __name__ == "__main__":
    main()
