"""Each bug this app exists to prevent, put back into a copy of it: the test named beside it must turn red."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    sound: str
    broken: str
    test: str


BUGS = (
    Bug(
        "a module-level history",
        "agentapp/turn.py",
        "    room = HISTORY_CHARS\n",
        "    EVERYTHING.extend(said)\n    said = tuple(EVERYTHING)\n    room = HISTORY_CHARS\n",
        "tests/test_turn.py::test_what_the_model_saw_before_is_only_this_chat",
    ),
    Bug(
        "one agent for all requests",
        "agentapp/agents/team.py",
        "        return Crew(self, scope, report or _log_report)\n",
        "        return CREWS.setdefault(self.front.name, Crew(self, scope, report or _log_report))\n",
        "tests/test_turn.py::test_after_any_trouble_the_next_request_of_anyone_works",
    ),
    Bug(
        "a binding held across a yield",
        "agentapp/isolation.py",
        "        with self._binder.bound(self._scope):\n            return next(self._items)\n",
        "        self._binder.bound(self._scope).__enter__()\n        return next(self._items)\n",
        "tests/test_isolation.py::test_a_stream_is_bound_around_each_pull_and_never_between_two",
    ),
    Bug(
        "a binding held across a yield, seen from a page",
        "agentapp/isolation.py",
        "        with self._binder.bound(self._scope):\n            return next(self._items)\n",
        "        self._binder.bound(self._scope).__enter__()\n        return next(self._items)\n",
        "tests/test_hooks.py::test_after_a_streaming_turn_a_stranger_on_the_same_thread_sees_nobody",
    ),
    Bug(
        "a scoped session that is not removed",
        "agentapp/storage/db.py",
        "        binder.at_release(self.release)\n",
        "",
        "tests/test_storage.py::test_the_scoped_session_is_removed_when_its_binding_ends[sqlite]",
    ),
    Bug(
        "a tool thread without its scope",
        "agentapp/agents/threaded.py",
        "        run = self._binder.carried(context.scope, lambda: _finish(tool.call(context, call)))\n",
        "        run = lambda: _finish(tool.call(context, call))\n",
        "tests/test_loop.py::test_each_tool_has_its_scope_carried_in",
    ),
    Bug(
        "the user missing from the WHERE clause",
        "agentapp/storage/owned.py",
        "    return and_(table.tenant_id == scope.tenant_id, table.user_id == scope.user_id)\n",
        "    return and_(table.tenant_id == scope.tenant_id)\n",
        "tests/test_storage.py::test_somebody_elses_chat_is_an_absent_one[sqlite]",
    ),
    Bug(
        "the tenant missing from the WHERE clause",
        "agentapp/storage/owned.py",
        "    return and_(table.tenant_id == scope.tenant_id, table.user_id == scope.user_id)\n",
        "    return and_(table.user_id == scope.user_id)\n",
        "tests/test_storage.py::test_somebody_elses_chat_is_an_absent_one[sqlite]",
    ),
    Bug(
        "the owner missing from one query only",
        "agentapp/storage/notes.py",
        "            gone = db.execute(delete(Note).where(in_session(scope, Note), Note.number == number))\n",
        "            gone = db.execute(delete(Note).where(Note.number == number))\n",
        "tests/test_storage.py::test_somebody_elses_chat_is_an_absent_one[sqlite]",
    ),
    Bug(
        "no sweep before a request",
        "agentapp/web/hooks.py",
        "    p.binder.sweep()\n",
        "",
        "tests/test_hooks.py::test_somebody_elses_teardown_that_raises_changes_nothing_for_the_next",
    ),
    Bug(
        "a connection held while the model talks",
        "agentapp/storage/db.py",
        "        self.release()\n",
        "",
        "tests/test_turn.py::test_no_connection_is_held_while_the_model_talks",
    ),
    Bug(
        "two connections held at once",
        "agentapp/storage/db.py",
        "        self.release()\n",
        "",
        "tests/test_storage.py::test_nobody_holds_two_connections_at_once[sqlite]",
    ),
    Bug(
        "a pool shared with a forked child",
        "agentapp/storage/db.py",
        '    event.listen(engine, "checkout", _refuse_inherited)\n',
        "",
        "tests/test_storage.py::test_a_connection_is_not_used_by_a_forked_child[sqlite]",
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_put_back_turns_its_test_red(bug: Bug, tmp_path: Path) -> None:
    for folder in ("agentapp", "tests", "migrations"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    source = (tmp_path / bug.file).read_text()
    assert source.count(bug.sound) == 1, f"{bug.file} has changed: this bug cannot be put back any more"
    names = "EVERYTHING: list = []\nCREWS: dict = {}\n\n\n"
    head, line, tail = source.partition("\n\n\n")
    (tmp_path / bug.file).write_text((head + line + names + tail).replace(bug.sound, bug.broken))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", bug.test, "-n", "0", "-p", "no:cacheprovider", "--tb", "short"],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed" in done.stdout.splitlines()[-1], done.stdout
    assert "ImportError" not in done.stdout
    assert "SyntaxError" not in done.stdout
