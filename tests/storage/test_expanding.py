"""Migrations only add to what the release before knows, unless they say who can work with the schema then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory

from agentapp.storage import migrate, schema
from tests.support import previous_release
from tests.support.schema_changes import Seen, look_at, taken_away


def upgraded_to(url: str, revision: str) -> Seen:
    with schema.migrating(url) as connection:
        command.upgrade(migrate.config_for(connection), revision)
        return look_at(connection)


def test_the_release_before_loses_nothing_by_the_migrations_since(url: str) -> None:
    """A revision that takes something away declares with ``oldest_code`` that the release before does not
    need it any more: so one release adds, and the next takes away.
    """
    scripts = ScriptDirectory.from_config(migrate.config_for(None))
    newer = list(scripts.iterate_revisions("head", previous_release.HEAD))[::-1]
    assert newer[-1].revision == schema.HEAD
    before = upgraded_to(url, previous_release.HEAD)
    for script in newer:
        after = upgraded_to(url, script.revision)
        oldest_code = getattr(script.module, "oldest_code", None)
        if oldest_code is None:
            assert taken_away(before, after) == [], script.revision
        else:
            assert oldest_code <= previous_release.HEAD, f"{script.revision} shuts out the release before"
        before = after


class Undone(Exception): ...


def taken_away_by(url: str, *changes: Callable[[Any], object]) -> Iterator[list[str]]:
    """What each of them would take away. All are undone."""
    with schema.migrating(url) as connection:
        before = look_at(connection)
    for change in changes:
        with suppress(Undone), schema.migrating(url) as connection:
            change(Operations(MigrationContext.configure(connection)))
            yield taken_away(before, look_at(connection))
            raise Undone


def altering(table: str, change: Callable[[Any], object]) -> Callable[[Any], object]:
    def run(op: Any) -> None:
        with op.batch_alter_table(table) as found:
            change(found)

    return run


ADDED: tuple[Callable[[Any], object], ...] = (
    lambda op: op.create_table("added", sa.Column("id", sa.Integer(), primary_key=True)),
    lambda op: op.add_column("notes", sa.Column("added", sa.Integer(), nullable=True)),
    lambda op: op.add_column("notes", sa.Column("added", sa.Integer(), nullable=False, server_default="0")),
    lambda op: op.create_index("ix_added", "notes", ["session_id"]),
)
TAKEN: tuple[tuple[str, Callable[[Any], object]], ...] = (
    ("table notes is gone", lambda op: op.drop_table("notes")),
    ("table notes is gone", lambda op: op.rename_table("notes", "remarks")),
    ("workers: column host is gone", altering("workers", lambda t: t.drop_column("host"))),
    (
        "workers: column host is gone",
        altering("workers", lambda t: t.alter_column("host", new_column_name="machine")),
    ),
    (
        "workers: column build must be given now",
        altering("workers", lambda t: t.alter_column("build", nullable=False)),
    ),
    (
        "workers: column pid was INTEGER and is TEXT",
        altering("workers", lambda t: t.alter_column("pid", type_=sa.Text())),
    ),
    (
        "workers: column zone is new and must be given",
        altering("workers", lambda t: t.add_column(sa.Column("zone", sa.Text(), nullable=False))),
    ),
    (
        "workers: rule ('unique', ['pid'], '') is new",
        lambda op: op.create_index("uq_pid", "workers", ["pid"], unique=True),
    ),
    (
        "workers: rule ('check', 'pid > 1') is new",
        altering("workers", lambda t: t.create_check_constraint("ck_pid", "pid > 1")),
    ),
    (
        "alerts: rule ('unique', ['kind', 'subject'], ",
        lambda op: op.drop_index("uq_alerts_open", "alerts"),
    ),
    ("trigger audit_log_is_append_only is gone", lambda op: op.drop_table("audit_log")),
)


def test_what_is_added_takes_nothing_away(url: str) -> None:
    migrate.upgrade(url)
    assert list(taken_away_by(url, *ADDED)) == [[]] * len(ADDED)


def test_what_is_taken_away_is_noticed(url: str) -> None:
    migrate.upgrade(url)
    told = taken_away_by(url, *(change for _, change in TAKEN))
    for (said, _), found in zip(TAKEN, told, strict=True):
        assert [each for each in found if each.startswith(said)], (said, found)
