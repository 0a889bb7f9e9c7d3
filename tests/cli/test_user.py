"""`agentapp user`: accounts are made, listed, locked and given passwords."""

from __future__ import annotations

import json

import pytest

from agentapp.errors import WrongPassword
from agentapp.storage.accounts import Accounts
from tests.support.commands import PASSWORD, Agentapp, add_user


def test_added_user_can_sign_in(migrated: Agentapp, accounts: Accounts) -> None:
    result = add_user(migrated, "Ann", "--tenant", "acme", "--role", "admin")
    assert (result.exit_code, result.stdout) == (0, "added ann to acme as admin\n")
    user, _ = accounts.sign_in("ann", PASSWORD)
    assert (user.tenant, user.role) == ("acme", "admin")


def test_user_is_a_member_of_the_default_tenant_unless_told_otherwise(migrated: Agentapp) -> None:
    assert add_user(migrated, "ann").stdout == "added ann to default as member\n"


def test_list_shows_everybody(migrated: Agentapp) -> None:
    add_user(migrated, "ann")
    add_user(migrated, "bob", "--tenant", "acme", "--role", "operator")
    migrated("user", "disable", "ann")
    assert migrated("user", "list").stdout == "bob\tacme\toperator\nann\tdefault\tmember\tdisabled\n"
    assert json.loads(migrated("user", "list", "--json").stdout) == [
        {"name": "bob", "tenant": "acme", "role": "operator", "disabled": False},
        {"name": "ann", "tenant": "default", "role": "member", "disabled": True},
    ]


def test_list_of_nobody_is_empty(migrated: Agentapp) -> None:
    assert migrated("user", "list").stdout == ""
    assert json.loads(migrated("user", "list", "--json").stdout) == []


def test_disabled_user_cannot_sign_in_until_enabled(migrated: Agentapp, accounts: Accounts) -> None:
    add_user(migrated, "ann")
    _, token = accounts.sign_in("ann", PASSWORD)
    assert migrated("user", "disable", "Ann").exit_code == 0
    accounts._db.release()
    assert accounts.user_of(token) is None
    with pytest.raises(WrongPassword):
        accounts.sign_in("ann", PASSWORD)
    assert migrated("user", "enable", "ann").exit_code == 0
    accounts._db.release()
    accounts.sign_in("ann", PASSWORD)


def test_new_password_replaces_the_old_one(migrated: Agentapp, accounts: Accounts) -> None:
    add_user(migrated, "ann")
    assert migrated("user", "set-password", "ann", "--password-stdin", stdin="another one\n").exit_code == 0
    accounts.sign_in("ann", "another one")
    with pytest.raises(WrongPassword):
        accounts.sign_in("ann", PASSWORD)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\nsecond line\n"])
def test_only_the_line_end_is_dropped_from_a_password(
    migrated: Agentapp, accounts: Accounts, end: str
) -> None:
    migrated("user", "add", "ann", "--password-stdin", stdin=f"  with spaces \t{end}")
    accounts.sign_in("ann", "  with spaces \t")


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        ("", "There is no password on standard input."),
        ("\nlater", "There is no password on standard input."),
        (b"caf\xe9 caf\xe9\n", "The password on standard input is not UTF-8 text."),
        ("short\n", "A password has at least 8 characters and at most 1024 bytes."),
    ],
)
@pytest.mark.parametrize("command", ["add", "set-password"])
def test_bad_password_is_refused_in_one_line(
    migrated: Agentapp, command: str, stdin: str | bytes, message: str
) -> None:
    result = migrated("user", command, "ann", "--password-stdin", stdin=stdin)
    assert (result.exit_code, result.stderr) == (1, f"agentapp: {message}\n")
    assert migrated("user", "list").stdout == ""


@pytest.mark.parametrize("command", ["add", "set-password"])
def test_password_is_never_asked_for_in_any_other_way(migrated: Agentapp, command: str) -> None:
    result = migrated("user", command, "ann", stdin=f"{PASSWORD}\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--password-stdin" in result.stderr
    assert migrated("user", "list").stdout == ""


def test_second_user_of_the_same_name_is_refused(migrated: Agentapp) -> None:
    add_user(migrated, "ann")
    result = add_user(migrated, "ANN", "--tenant", "acme")
    assert (result.exit_code, result.stderr) == (1, "agentapp: There is already a user 'ann'.\n")


def test_bad_name_is_refused(migrated: Agentapp) -> None:
    result = add_user(migrated, "a b")
    assert result.exit_code == 1
    assert result.stderr.startswith("agentapp: A user name has ")


def test_bad_role_is_refused(migrated: Agentapp) -> None:
    result = add_user(migrated, "ann", "--role", "king")
    assert result.exit_code == 2
    for word in ("king", "member", "admin", "operator"):
        assert f"'{word}'" in result.stderr


@pytest.mark.parametrize("command", ["disable", "enable", "set-password"])
def test_unknown_user_is_told_in_one_line(migrated: Agentapp, command: str) -> None:
    options = ("--password-stdin",) if command == "set-password" else ()
    result = migrated("user", command, "nobody", *options, stdin=f"{PASSWORD}\n")
    assert (result.exit_code, result.stderr) == (1, "agentapp: There is no user 'nobody'.\n")


def test_the_first_user_can_be_added_before_the_first_start(agentapp: Agentapp) -> None:
    result = agentapp("user", "add", "ann", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert (result.exit_code, result.stdout) == (0, "added ann to default as member\n")


@pytest.mark.parametrize("command", ["list", "disable", "enable", "set-password"])
def test_missing_schema_is_told_by_the_other_user_commands(agentapp: Agentapp, command: str) -> None:
    name = () if command == "list" else ("ann",)
    options = ("--password-stdin",) if command == "set-password" else ()
    result = agentapp("user", command, *name, *options, stdin=f"{PASSWORD}\n")
    assert result.exit_code == 2
    assert result.stderr == "agentapp: the database has no tables yet: run `agentapp db upgrade`\n"
