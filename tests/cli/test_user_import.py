"""`agentapp user import`: everybody in a file is added, or nobody is and every reason is told."""

from __future__ import annotations

import csv
import io
import json
import logging
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from agentapp.cli import user_file
from agentapp.errors import BadRequest
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage import user_import
from agentapp.storage.accounts import Accounts
from agentapp.storage.db import Database
from agentapp.storage.operator_models import AuditRow
from agentapp.storage.user_import import Person, UserImport, hashed
from tests.support.commands import PASSWORD, Agentapp, add_user

SECRET = "hidden-lemon-canary"


@pytest.fixture
def url(database_url: str, environ: dict[str, str]) -> str:
    """On SQLite and on PostgreSQL."""
    environ["AGENTAPP_DATABASE_URL"] = database_url
    return database_url


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "people.csv"


def imported(agentapp: Agentapp, file: Path, text: str | bytes, *options: str) -> Result:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return agentapp("user", "import", str(file), *options)


def users(agentapp: Agentapp) -> list[str]:
    return [
        f"{u['name']} {u['tenant']} {u['role']}"
        for u in json.loads(agentapp("user", "list", "--json").stdout)
    ]


def refused(agentapp: Agentapp, file: Path, text: str | bytes, *options: str) -> list[str]:
    """The lines of the refusal. Nothing was changed by it."""
    before = agentapp("user", "list").stdout
    result = imported(agentapp, file, text, *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert agentapp("user", "list").stdout == before
    return result.stderr.splitlines()


# --- who is added ---------------------------------------------------------------------------------


def test_everybody_in_the_file_can_sign_in(url: str, agentapp: Agentapp, file: Path) -> None:
    more = f"bob,,,{PASSWORD} bob\nzoë,acme,Member,{PASSWORD}"
    text = f"name,tenant,role,password\nAnn,acme,admin,{PASSWORD} ann\n{more}"
    result = imported(agentapp, file, text)
    assert (result.exit_code, result.output) == (0, "added 3 users\n")
    assert users(agentapp) == ["ann acme admin", "zoë acme member", "bob default member"]
    binder = ThreadBinder()
    database = Database(url, binder)
    with binder.bound(RequestScope(request_id="test")):
        accounts = Accounts(database)
        for name, password in (("ANN", f"{PASSWORD} ann"), ("bob", f"{PASSWORD} bob"), ("zoë", PASSWORD)):
            user, _ = accounts.sign_in(name, password)
            assert not user.must_change
        with database.reading() as db:
            rows = db.query(AuditRow).filter_by(action="user-added").order_by(AuditRow.id).all()
            assert [(row.detail, row.request_id) for row in rows] == [
                ({"role": role}, "cli") for role in ("admin", "member", "member")
            ]
            assert rows[0].subject == f"user:{accounts.sign_in('ann', f'{PASSWORD} ann')[0].id}"
            assert rows[0].tenant_id == rows[2].tenant_id != rows[1].tenant_id
    database.close()


def test_without_passwords_each_gets_one_that_has_to_be_changed(
    migrated: Agentapp, accounts: Accounts, file: Path
) -> None:
    result = imported(migrated, file, "name,tenant\nann,acme\nbob,acme\n")
    assert (result.exit_code, result.stderr) == (0, "added 2 users\n")
    made = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["name"], row["tenant"]) for row in made] == [("ann", "acme"), ("bob", "acme")]
    assert len({row["password"] for row in made}) == 2
    for row in made:
        user, _ = accounts.sign_in(row["name"], row["password"])
        assert user.must_change


def test_made_passwords_are_written_to_a_file_for_its_owner_alone(
    migrated: Agentapp, accounts: Accounts, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    result = imported(migrated, file, "name\nann\n", "--passwords-out", str(out))
    assert (result.exit_code, result.output) == (0, "added 1 user\n")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    (row,) = csv.DictReader(io.StringIO(out.read_text()))
    assert accounts.sign_in("ann", row["password"])[0].must_change
    kept = out.read_text()
    lines = refused(migrated, file, "name\nbob\n", "--passwords-out", str(out))
    assert lines == [f"agentapp: cannot write {out}: File exists. Nobody was added."]
    assert out.read_text() == kept


def test_passwords_of_a_file_hold_until_they_are_changed_or_for_one_sign_in_if_so_wanted(
    migrated: Agentapp, accounts: Accounts, file: Path, tmp_path: Path
) -> None:
    text = f"name,password\nann,{PASSWORD}\n"
    (line,) = refused(migrated, file, text, "--passwords-out", str(tmp_path / "out.csv"))
    assert line == "agentapp: --passwords-out is for passwords that are made. This file brings its own."
    assert not (tmp_path / "out.csv").exists()
    assert imported(migrated, file, text, "--must-change").exit_code == 0
    assert accounts.sign_in("ann", PASSWORD)[0].must_change


def test_the_first_users_can_be_imported_before_the_first_start(agentapp: Agentapp, file: Path) -> None:
    assert imported(agentapp, file, f"name,role,password\nann,operator,{PASSWORD}\n").exit_code == 0
    assert users(agentapp) == ["ann default operator"]


# --- how a file may be written --------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        f"\ufeffname;role;password\r\nann;admin;{PASSWORD}\r\nbob;member;{PASSWORD}\r\n",
        f"Name , ROLE,password\nann,admin,{PASSWORD}\n\n,,\nbob,,{PASSWORD}",
        f'"name","password","role"\n"ann","{PASSWORD}","admin"\n" Bob ","{PASSWORD}",""\n',
        f"password,role,name\n{PASSWORD},admin,ann\n{PASSWORD},member,bob\n",
    ],
    ids=["as Excel writes it", "with empty lines", "quoted", "in another order"],
)
def test_a_file_as_spreadsheets_write_it(
    migrated: Agentapp, accounts: Accounts, file: Path, raw: str
) -> None:
    assert imported(migrated, file, raw).output == "added 2 users\n"
    assert users(migrated) == ["ann default admin", "bob default member"]
    accounts.sign_in("bob", PASSWORD)


def test_a_password_is_taken_as_it_stands_in_its_cell(
    migrated: Agentapp, accounts: Accounts, file: Path
) -> None:
    odd = ' with ""quotes"", a comma;\nand a line '
    assert imported(migrated, file, f'name,password\nann,"{odd}"\n').exit_code == 0
    accounts.sign_in("ann", odd.replace('""', '"'))


def test_standard_input_is_a_file_too(migrated: Agentapp) -> None:
    result = migrated("user", "import", "-", stdin=f"name,password\nann,{PASSWORD}\n")
    assert result.output == "added 1 user\n"


# --- what is refused ------------------------------------------------------------------------------


def test_all_problems_are_told_at_once_with_their_lines_and_nobody_is_added(
    url: str, agentapp: Agentapp, file: Path
) -> None:
    add_user(agentapp, "ann", "--tenant", "acme")
    text = f"""name,tenant,role,password
ANN,acme,,{PASSWORD}
good,acme,,{PASSWORD}
a b,acme,,{PASSWORD}
bob,acme,king,{PASSWORD}
Good,acme,,{PASSWORD}
carl,acme,,short
dora,acme,,password123
erna,acme,,erna
rnax,acme,,{PASSWORD}
max,,,"{PASSWORD}
 of two lines"
mаx2,,,{PASSWORD}
mia,acrne,,{PASSWORD}
few,cells
moe,zeta,,{PASSWORD}
meg,zеta,,{PASSWORD}
"""
    assert refused(agentapp, file, text) == [
        "line 2: There is already a user 'ann'.",
        "line 4: A user name has 1 to 64 letters or digits; . - _ + and @ are fine too.",
        "line 5: A role is one of member, admin, operator.",
        "line 6: The user name is the one of line 3.",
        "line 7: A password has at least 8 characters and at most 1024 bytes.",
        "line 8: This password is easy to guess: it is a common one, or little more than a word, a name, a"
        " row of keys or a repetition. Choose another, such as three words that have nothing to do with each"
        " other.",
        "line 9: A password has at least 8 characters and at most 1024 bytes.",
        "line 11: There is already a user whose name looks the same, in line 10.",
        "line 13: A user name has letters of one alphabet only, such as all Latin or all Cyrillic, and no"
        " digits of another one.",
        "line 14: There is already a tenant whose name looks the same.",
        "line 15: It has 2 columns, and the first line has 4.",
        "line 17: A tenant name has letters of one alphabet only, such as all Latin or all Cyrillic, and no"
        " digits of another one.",
        "agentapp: 12 lines cannot be used. Nobody was added. With --skip-existing those who are there"
        " already stay as they are.",
    ]
    assert users(agentapp) == ["ann acme member"]


def test_an_import_that_is_run_twice_says_who_is_there_already_and_can_skip_them(
    migrated: Agentapp, accounts: Accounts, file: Path
) -> None:
    text = f"name,password\nann,{PASSWORD}\nBob,{PASSWORD}\n"
    assert imported(migrated, file, text).exit_code == 0
    assert refused(migrated, file, text)[:2] == [
        "line 2: There is already a user 'ann'.",
        "line 3: There is already a user 'bob'.",
    ]
    more = f"name,password\nANN,another long password\nbob,{PASSWORD}\ncarl,{PASSWORD}\n"
    result = imported(migrated, file, more, "--skip-existing")
    assert (result.exit_code, result.output) == (0, "added 1 user; 2 users had been there already\n")
    accounts.sign_in("ann", PASSWORD)
    result = imported(migrated, file, more, "--skip-existing")
    assert (result.exit_code, result.output) == (0, "added 0 users; 3 users had been there already\n")


NAMES = [
    "ann",
    "Ann ",
    "аnn",
    "ann1",
    "annl",
    "a nn",
    "",
    "x" * 65,
    "ａnn",
    "münchen",
    "rnünchen",
    "vv",
    "w",
    "王芳",
    "१ab",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_refused_exactly_if_one_account_with_it_would_be(
    migrated: Agentapp, accounts: Accounts, name: str
) -> None:
    for there in ("ann1", "münchen", "vv", "ab"):
        accounts.add(there, PASSWORD, tenant="mm")
    importing = UserImport(accounts._db)
    in_file = [problem.text for problem in importing.problems([Person(2, name, "mm", "member", PASSWORD)])]
    as_tenant = [
        problem.text for problem in importing.problems([Person(2, "fresh", name, "member", PASSWORD)])
    ]
    alone: list[list[str]] = []
    for user, tenant in ((name, "mm"), ("fresh", name)):
        try:
            accounts.add(user, PASSWORD, tenant=tenant)
            alone.append([])
        except BadRequest as error:
            alone.append([str(error)])
    assert [in_file, as_tenant] == alone


NO_HEAD = "The first line must name the columns: name and, if they are given, tenant, role and password."
HEADS = {
    f"ann,acme,member,{SECRET}\n": NO_HEAD,
    "": NO_HEAD,
    "name,mail\nann,x\n": "There is no column 'mail'. There are name, tenant, role, password.",
    "name,role,Name\nann,x,y\n": "The column 'name' is there twice.",
    b"name\nann\nzo\xeb\n": "line 3: The file is not UTF-8 text.",
    'name\n"ann\n': "1 line cannot be used. Nobody was added.",
}


@pytest.mark.parametrize("text", HEADS)
def test_a_file_of_another_form_is_refused_in_plain_words(
    migrated: Agentapp, file: Path, text: str | bytes
) -> None:
    assert refused(migrated, file, text)[-1] == f"agentapp: {HEADS[text]}"


def test_a_file_that_is_too_long_is_refused_before_all_of_it_is_read(
    migrated: Agentapp, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = "name\n" + "".join(f"user{n}\n" for n in range(user_file.MAX_PEOPLE + 1))
    assert refused(migrated, file, many) == [
        "agentapp: The file has more than 10,000 people: make several files of it."
    ]
    with open("/dev/zero", "rb") as endless, pytest.raises(BadRequest, match="more than 16 MiB"):
        user_file.read_people(endless)


# --- passwords stay secret ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"name,role,password\nann,{SECRET},x\n",
        f"name,role,password\nann,{SECRET}\n",
        f"name,password\nann,{SECRET},and more\n",
        f'name,password\nann,"{SECRET}" x\n',
        f"{SECRET}\nann\n",
        f"name,password\nann,{SECRET}\nann,{SECRET}\n",
        f"name,password\n{SECRET},{SECRET}\n",
    ],
)
def test_no_password_is_shown_or_logged_whatever_is_wrong(
    migrated: Agentapp, file: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    lines = refused(migrated, file, text)
    assert SECRET not in "".join(lines) + caplog.text


def test_passwords_are_stored_as_hashes_alone(
    migrated: Agentapp, file: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    result = imported(migrated, file, f"name,password\nann,{SECRET}\nbob,{SECRET}\n")
    assert result.exit_code == 0
    assert SECRET not in result.output + caplog.text
    assert SECRET.encode() not in (tmp_path / "test.sqlite3").read_bytes()
    assert SECRET not in repr(Person(2, "ann", password=SECRET))


# --- all or nobody --------------------------------------------------------------------------------


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch, accounts: Accounts) -> Iterator[None]:
    """While passwords are hashed, somebody else adds bob."""

    def hashed_meanwhile(*given: Any) -> Iterator[str]:
        yield from hashed(*given)
        accounts.add("bob", PASSWORD)

    monkeypatch.setattr("agentapp.cli.user_import.hashed", hashed_meanwhile)
    return


def test_a_name_that_is_taken_meanwhile_leaves_everybody_out(
    migrated: Agentapp, meanwhile: None, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    result = imported(migrated, file, "name\nann\nbob\n", "--passwords-out", str(out))
    assert result.exit_code == 1
    assert result.stderr == "agentapp: line 3: There is already a user 'bob'. Nobody was added.\n"
    assert users(migrated) == ["bob default member"]
    assert not out.exists(), "no passwords of nobody"


def test_a_failure_in_the_midst_leaves_nobody(
    url: str, agentapp: Agentapp, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_import, "AuditRow", user_import.Tenant)  # the last statement fails
    with pytest.raises(AssertionError):
        imported(agentapp, file, "name,tenant\nann,acme\n")
    monkeypatch.undo()
    assert users(agentapp) == []
    assert imported(agentapp, file, f"name,tenant,password\nann,acme,{PASSWORD}\n").output == "added 1 user\n"


def test_passwords_are_hashed_on_all_cores_and_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_import.os, "cpu_count", lambda: 3)
    together = threading.Barrier(3)

    def slow(password: str) -> str:
        together.wait(20)
        return password.upper()

    assert list(hashed(["a", "b", "c", "d", "e", "f"], slow)) == ["A", "B", "C", "D", "E", "F"]
