"""Many accounts at once: all are checked before any is made, and all are made or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import get_args

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from agentapp.errors import BadRequest
from agentapp.isolation import RequestScope, new_id
from agentapp.storage.audit_log import AuditEntry
from agentapp.storage.clock import now_in
from agentapp.storage.db import Database
from agentapp.storage.models import Tenant
from agentapp.storage.models import User as UserRow
from agentapp.storage.names import check_name, check_new_name, look_of, normalise_name
from agentapp.storage.operator_models import AuditRow
from agentapp.storage.passwords import check_password
from agentapp.storage.user_changes import lock_accounts
from agentapp.storage.values import Role

ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Person:
    """One line of a file, as it was written. Whoever has no ``password`` is given one."""

    line: int
    name: str
    tenant: str = "default"
    role: str = "member"
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class NewAccount:
    """``given`` if the user has to choose another password at the first sign-in."""

    person: Person
    hashed: str = field(repr=False)
    given: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """It never has a word of what may be a password in the wrong column."""

    line: int
    text: str


class UserImport:
    def __init__(self, db: Database) -> None:
        self._db = db

    def split(self, people: Sequence[Person]) -> tuple[list[Person], list[Person]]:
        """Those who are not there yet, and those who are."""
        with self._db.reading() as db:
            existing = set(db.scalars(select(UserRow.name)))
        self._db.release()
        new = [person for person in people if normalise_name(person.name) not in existing]
        return new, [person for person in people if normalise_name(person.name) in existing]

    def problems(self, people: Sequence[Person]) -> list[Problem]:
        """All that keeps these from being added; the first one of each line."""
        with self._db.reading() as db:
            names, tenants = _names_in(db)
        self._db.release()
        return [*_found(people, names, tenants, check_passwords=True)]

    def add(self, accounts: Sequence[NewAccount], by: RequestScope) -> None:
        """In one transaction. If a name was taken since it was checked, nobody is added."""
        people = [account.person for account in accounts]
        with self._db.writing() as db:
            lock_accounts(db)
            names, tenants = _names_in(db)
            for problem in _found(people, names, tenants, check_passwords=False):
                raise BadRequest(f"line {problem.line}: {problem.text} Nobody was added.")
            _insert(db, accounts, by)


def hashed(passwords: Sequence[str], hash_password: Callable[[str], str]) -> Iterator[str]:
    """In their order, as many at once as there are cores: it takes its time on purpose."""
    pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="agentapp-hash")
    try:
        yield from pool.map(hash_password, passwords)
    finally:
        pool.shutdown(cancel_futures=True)


class _Names:
    """Names that are taken, of users or of tenants: those that are there, and those of the lines before."""

    def __init__(self, kind: str, existing: Iterable[str]) -> None:
        self._kind = kind
        self._line_of: dict[str, int | None] = dict.fromkeys(existing)
        self._looks: dict[str, int | None] = {look_of(name): None for name in self._line_of}

    def has(self, clean: str) -> bool:
        return clean in self._line_of

    def taken(self, clean: str) -> str:
        """By whom it is."""
        line = self._line_of[clean]
        there = f"There is already a {self._kind} {clean!r}."
        return there if line is None else f"The {self._kind} name is the one of line {line}."

    def add(self, clean: str, line: int) -> None:
        """Refuses it as `check_new_name` does."""
        check_new_name(clean, self._kind, ())
        look = look_of(clean)
        if look in self._looks:
            other = self._looks[look]
            where = "" if other is None else f", in line {other}"
            raise BadRequest(f"There is already a {self._kind} whose name looks the same{where}.")
        self._line_of[clean] = self._looks[look] = line


def _names_in(db: Session) -> tuple[_Names, _Names]:
    users, tenants = db.scalars(select(UserRow.name)), db.scalars(select(Tenant.name))
    return _Names("user", users), _Names("tenant", tenants)


def _found(
    people: Sequence[Person], names: _Names, tenants: _Names, *, check_passwords: bool
) -> Iterator[Problem]:
    for person in people:
        try:
            _check(person, names, tenants, check_passwords=check_passwords)
        except BadRequest as error:
            yield Problem(person.line, str(error))


def _check(person: Person, names: _Names, tenants: _Names, *, check_passwords: bool) -> None:
    name, tenant = check_name(person.name, "user"), check_name(person.tenant, "tenant")
    if names.has(name):
        raise BadRequest(names.taken(name))
    names.add(name, person.line)
    if not tenants.has(tenant):
        tenants.add(tenant, person.line)
    if person.role not in ROLES:
        raise BadRequest(f"A role is one of {', '.join(ROLES)}.")
    if check_passwords and person.password is not None:
        check_password(person.password, name)


def _insert(db: Session, accounts: Sequence[NewAccount], by: RequestScope) -> None:
    now = now_in(db)
    tenant_ids = {name: id for id, name in db.execute(select(Tenant.id, Tenant.name))}
    wanted = dict.fromkeys(normalise_name(account.person.tenant) for account in accounts)
    made = {name: new_id() for name in wanted if name not in tenant_ids}
    if made:
        db.execute(insert(Tenant), [{"id": id, "name": name, "created_at": now} for name, id in made.items()])
    tenant_ids |= made
    users, entries = [], []
    for account in accounts:
        person, user_id = account.person, new_id()
        tenant_id = tenant_ids[normalise_name(person.tenant)]
        users.append(
            {
                "id": user_id,
                "tenant_id": tenant_id,
                "name": normalise_name(person.name),
                "password_hash": account.hashed,
                "role": person.role,
                "created_at": now,
                "password_given_at": now if account.given else None,
            }
        )
        entry = AuditEntry.of(by, "user-added", f"user:{user_id}", role=person.role)
        entries.append(replace(entry, tenant_id=tenant_id).values(now))
    if users:
        db.execute(insert(UserRow), users)
        db.execute(insert(AuditRow), entries)
