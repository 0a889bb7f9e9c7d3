"""The audit log as a CSV file, made piece by piece."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from agentapp.storage.audit_rows import AuditRecord
from agentapp.web.admin.audit_words import words

HEAD = ("time_utc", "action", "user", "user_id", "subject", "subject_user", "detail", "request_id", "tenant")
# A spreadsheet takes a cell that begins with one of these for a formula.
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_pieces(pieces: Iterable[Sequence[AuditRecord]]) -> Iterator[str]:
    yield _lines([HEAD])
    for records in pieces:
        yield _lines([_cells(record) for record in records])


def inert(cell: str) -> str:
    """The same text, which no spreadsheet calculates."""
    return f"'{cell}" if cell.startswith(FORMULA_SIGNS) else cell


def _lines(rows: Iterable[Sequence[str]]) -> str:
    text = StringIO()
    csv.writer(text).writerows([[inert(cell) for cell in row] for row in rows])
    return text.getvalue()


def _cells(record: AuditRecord) -> Sequence[str]:
    return (
        f"{record.at:%Y-%m-%dT%H:%M:%SZ}",
        record.action,
        record.user,
        record.user_id,
        record.subject,
        record.subject_user,
        "; ".join(f"{name}: {value}" for name, value in words(record.detail)),
        record.request_id,
        record.tenant,
    )
