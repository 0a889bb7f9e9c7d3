"""Which tables are copied, in which order, and how the columns of each are written on both databases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from sqlalchemy import JSON, Boolean, Column, DateTime, Float, Integer, MetaData, String, Table
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.dialects.postgresql.base import PGDialect

from agentapp.storage.operator_models import AuditRow

ALL_TABLES = AuditRow.metadata  # those of models.py are in it too
Kind = Literal["plain", "boolean", "time", "json", "words"]

# Every table has a decision here: a test fails for one that has none.
DECISIONS: Mapping[str, Literal["copied", "left"]] = MappingProxyType(
    {
        "tenants": "copied",
        "users": "copied",  # with what they keep, so nothing is counted while their chats are copied
        "logins": "copied",  # nobody is signed out, if the secret stays the same
        "setup_links": "copied",
        "sessions": "copied",
        "turns": "copied",
        # Turns of workers that are gone, and what they had spent: the first worker on the copy interrupts
        # and charges them, as it would have on the source.
        "live_turns": "copied",
        "turn_events": "copied",
        "charged_turns": "copied",
        "messages": "copied",
        "search_entries": "copied",  # on SQLite its full-text index is filled along with it
        "notes": "copied",
        "guardrail_cells": "copied",
        "audit_log": "copied",
        "alerts": "copied",
        "minute_counts": "copied",
        "usage_days": "copied",
        "usage_totals": "copied",
        "usage_total_days": "copied",
        "background_jobs": "copied",
        "workers": "left",  # processes that served the source; those of the target make rows of their own
    }
)


@dataclass(frozen=True, slots=True)
class CopiedColumn:
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """``key`` are the places of the primary key's columns."""

    name: str
    columns: tuple[CopiedColumn, ...]
    key: tuple[int, ...]

    @property
    def column_list(self) -> str:
        return ", ".join(f'"{column.name}"' for column in self.columns)

    @property
    def key_list(self) -> str:
        return ", ".join(f'"{self.columns[place].name}"' for place in self.key)


def copied_tables(metadata: MetaData = ALL_TABLES) -> tuple[CopiedTable, ...]:
    """In an order in which no row refers to one that is not there yet."""
    return tuple(_copied(table) for table in metadata.sorted_tables if DECISIONS[table.name] == "copied")


def all_names(metadata: MetaData = ALL_TABLES) -> tuple[str, ...]:
    """Of all tables, those that refer to others first."""
    return tuple(table.name for table in reversed(metadata.sorted_tables))


def _copied(table: Table) -> CopiedTable:
    columns = tuple(CopiedColumn(column.name, kind_of(column)) for column in table.columns)
    names = [column.name for column in columns]
    return CopiedTable(table.name, columns, tuple(names.index(each.name) for each in table.primary_key))


def kind_of(column: Column[object]) -> Kind:
    """Raises `TypeError` for a type of which nobody has said how it is copied."""
    there = column.type.dialect_impl(PGDialect())  # type: ignore[no-untyped-call]
    kinds: dict[type, Kind] = {
        TSVECTOR: "words",
        JSON: "json",
        DateTime: "time",
        Boolean: "boolean",
        String: "plain",
        Integer: "plain",
        Float: "plain",
    }
    inner = getattr(there, "impl_instance", there)
    for of_type, kind in kinds.items():
        if isinstance(inner, of_type):
            return kind
    raise TypeError(f"{column}: nobody has said how {column.type!r} is copied")
