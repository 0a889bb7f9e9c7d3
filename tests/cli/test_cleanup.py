"""`agentapp cleanup`, `agentapp user erase` and `agentapp db vacuum`."""

from __future__ import annotations

import signal
import threading
from datetime import timedelta

import pytest

from agentapp.cli import user
from agentapp.cli.cleanup import _interrupted
from agentapp.isolation import RequestScope
from agentapp.storage.accounts import Accounts
from agentapp.storage.audit_log import ADD_ENTRY, AuditEntry
from agentapp.storage.user_erasure import UserErasureStore
from tests.support.commands import Agentapp, add_user
from tests.support.times import utc_now

BY = RequestScope(request_id="test")


def test_a_dry_run_tells_the_same_numbers_and_removes_nothing(migrated: Agentapp, accounts: Accounts) -> None:
    assert migrated("cleanup").stdout == "nothing is too old\n"
    old = {**AuditEntry("signed-in").values(utc_now()), "at": utc_now() - timedelta(days=366)}
    with accounts._db.transaction() as db:
        db.run_many(ADD_ENTRY, [old] * 3)
    for _ in range(2):
        assert migrated("cleanup", "--dry-run").stdout == "would remove 3 audit rows\n"
    assert migrated("cleanup").stdout == "removed 3 audit rows\n"
    assert migrated("cleanup", "--dry-run").stdout == "nothing is too old\n"


def test_ctrl_c_lets_the_step_end_and_says_that_something_may_be_left(
    migrated: Agentapp, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {**AuditEntry("signed-in").values(utc_now()), "at": utc_now() - timedelta(days=366)}
    with accounts._db.transaction() as db:
        db.run_many(ADD_ENTRY, [old] * 300)
    interrupt_at(monkeypatch, 2)
    answer = migrated("cleanup")
    assert "interrupted: something may be left" in answer.stdout
    assert migrated("cleanup").exit_code == 0


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A signal comes after so many steps."""
    count = 0
    real = threading.Event.wait

    def wait(self: threading.Event, timeout: float | None = None) -> bool:
        nonlocal count
        count += 1
        if count == step:
            signal.raise_signal(signal.SIGINT)
        return real(self, 0 if timeout is not None else None)

    monkeypatch.setattr("agentapp.cli.cleanup.LONGEST_REST_SECONDS", 0.0)
    monkeypatch.setattr(threading.Event, "wait", wait)


def test_signals_mean_what_they_meant_before_when_it_has_ended() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with _interrupted() as asked:
        signal.raise_signal(signal.SIGTERM)
        assert asked.is_set()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_user_is_erased_after_the_name_was_given_again(
    migrated: Agentapp, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user, "_is_terminal", lambda: True)
    add_user(migrated, "ann")
    user_id = UserErasureStore(accounts._db).named("ann").id
    refused = migrated("user", "erase", "ann", stdin="bob\n")
    assert refused.exit_code == 1
    assert "ann" in migrated("user", "list").stdout
    done = migrated("user", "erase", "ann", stdin="ann\n")
    assert done.exit_code == 0
    assert "        1  users\n" in done.stdout
    assert f"erased ann, who is {user_id} in the audit log" in done.stdout
    assert "in no page" in done.stdout
    assert migrated("user", "list").stdout == ""
    assert migrated("user", "erase", "ann", "--yes").exit_code == 1


def test_a_script_is_not_asked(migrated: Agentapp) -> None:
    add_user(migrated, "ann")
    assert migrated("user", "erase", "ann").exit_code == 0
    assert migrated("user", "list").stdout == ""


def test_the_last_operator_is_not_erased(migrated: Agentapp) -> None:
    add_user(migrated, "otto", "--role", "operator")
    refused = migrated("user", "erase", "otto", "--yes")
    assert refused.exit_code == 1
    assert "last operator" in refused.stderr
    assert "disabled" not in migrated("user", "list").stdout


def test_the_file_is_made_anew_on_demand(migrated: Agentapp) -> None:
    assert "in no page" in migrated("db", "vacuum").stdout
