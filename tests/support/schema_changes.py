"""What a migration took away from code that does not know it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, inspect, text

TRIGGERS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
}


@dataclass(frozen=True)
class Table:
    columns: dict[str, Any]
    rules: frozenset[str]  # that refuse rows: keys, checks and the like; and by which ON CONFLICT finds them


@dataclass(frozen=True)
class Seen:
    tables: dict[str, Table]
    triggers: frozenset[str]


def look_at(connection: Connection) -> Seen:
    found = inspect(connection)
    tables = {name: _table(found, name) for name in found.get_table_names()}
    triggers = frozenset(connection.scalars(text(TRIGGERS[connection.dialect.name])))
    return Seen(tables, triggers)


def _table(found: Any, name: str) -> Table:
    unique = (index for index in found.get_indexes(name) if index["unique"])
    rules = [
        ("key", found.get_pk_constraint(name)["constrained_columns"]),
        *(("unique", sorted(each["column_names"])) for each in found.get_unique_constraints(name)),
        *(("unique", sorted(map(str, each["column_names"])), _where(each)) for each in unique),
        *(("check", each["sqltext"]) for each in found.get_check_constraints(name)),
        *(
            ("refers", each["constrained_columns"], each["referred_table"])
            for each in found.get_foreign_keys(name)
        ),
    ]
    return Table({each["name"]: each for each in found.get_columns(name)}, frozenset(map(str, rules)))


def _where(index: Any) -> str:
    options = index.get("dialect_options", {})
    return str(options.get("sqlite_where", options.get("postgresql_where", "")))


def taken_away(before: Seen, after: Seen) -> list[str]:
    """Each thing because of which code that knew the schema before may fail with the one after."""
    found = [f"trigger {name} is gone" for name in sorted(before.triggers - after.triggers)]
    for name, table in before.tables.items():
        if name not in after.tables:
            found.append(f"table {name} is gone")
        else:
            found += [f"{name}: {change}" for change in _changes(table, after.tables[name])]
    return found


def _changes(before: Table, after: Table) -> Iterator[str]:
    for name, column in before.columns.items():
        if name not in after.columns:
            yield f"column {name} is gone"
            continue
        now = after.columns[name]
        if str(now["type"]) != str(column["type"]):
            yield f"column {name} was {column['type']} and is {now['type']}"
        if _is_needed(now) and not _is_needed(column):
            yield f"column {name} must be given now"
    for name in after.columns.keys() - before.columns.keys():
        if _is_needed(after.columns[name]):
            yield f"column {name} is new and must be given"
    yield from (f"rule {rule} is new" for rule in sorted(after.rules - before.rules))
    yield from (f"rule {rule} is gone" for rule in sorted(before.rules - after.rules))


def _is_needed(column: Any) -> bool:
    """Whether a row that says nothing about it is refused."""
    return not column["nullable"] and column["default"] is None and not column.get("computed")
