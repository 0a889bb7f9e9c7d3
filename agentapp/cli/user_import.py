"""What `agentapp user import` does, from a file to accounts."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from agentapp.cli.database import BY_COMMAND
from agentapp.cli.user_file import read_people
from agentapp.errors import BadRequest
from agentapp.logs import escaped
from agentapp.storage.accounts import Accounts
from agentapp.storage.db import Database
from agentapp.storage.passwords import new_password
from agentapp.storage.user_import import NewAccount, Person, UserImport, hashed

EXISTING = "With --skip-existing those who are there already stay as they are."


def import_people(
    database: Database, file: BinaryIO, out: Path | None, *, skip_existing: bool, must_change: bool
) -> None:
    people, problems = read_people(file)
    importing, there = UserImport(database), list[Person]()
    if skip_existing:
        people, there = importing.split(people)
    problems += importing.problems(people)
    if problems:
        for problem in sorted(problems, key=lambda each: each.line):
            click.echo(escaped(f"line {problem.line}: {problem.text}"), err=True)
        hint = f" {EXISTING}" if not skip_existing and importing.split(people)[1] else ""
        raise BadRequest(f"{_count(len(problems), 'line')} cannot be used. Nobody was added.{hint}")
    made = [person for person in people if person.password is None]
    if out is not None and people and not made:
        raise BadRequest("--passwords-out is for passwords that are made. This file brings its own.")
    passwords = [new_password() if person.password is None else person.password for person in people]
    accounts = [
        NewAccount(person, text, given=must_change or person.password is None)
        for person, text in zip(people, _hashes(database, passwords), strict=True)
    ]
    table = _table(people, passwords) if made else ""
    with _written(out if made else None, table):
        importing.add(accounts, BY_COMMAND)
    is_shown = bool(made) and out is None
    if is_shown:
        click.echo(table, nl=False)
    said = f"added {_count(len(people), 'user')}"
    if there:
        said += f"; {_count(len(there), 'user')} had been there already"
    click.echo(said, err=is_shown)


def _hashes(database: Database, passwords: Sequence[str]) -> Iterator[str]:
    """With a bar in a terminal."""
    hashes = hashed(passwords, Accounts(database).hash)
    if not sys.stderr.isatty():
        yield from hashes
        return
    with click.progressbar(hashes, length=len(passwords), label="hashing passwords", file=sys.stderr) as bar:
        yield from bar


def _table(people: Sequence[Person], passwords: Sequence[str]) -> str:
    """For whoever hands the passwords out. Nothing else has them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("name", "tenant", "password"))
    for person, password in zip(people, passwords, strict=True):
        writer.writerow((person.name.strip(), person.tenant, password))
    return text.getvalue()


@contextmanager
def _written(path: Path | None, text: str) -> Iterator[None]:
    """A new file that nobody else may read. It is there before the accounts are, and goes if they are not
    made: nobody has an account whose password is lost.
    """
    if path is None:
        yield
        return
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}. Nobody was added.") from error
    try:
        yield
    except BaseException:
        path.unlink()
        raise


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)
