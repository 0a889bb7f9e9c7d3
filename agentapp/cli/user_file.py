"""The file of `agentapp user import`: a table as spreadsheets write it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from agentapp.errors import BadRequest
from agentapp.storage.user_import import Person, Problem

COLUMNS = ("name", "tenant", "role", "password")
# All of it is in memory, and each password takes its time: more people are several files.
MAX_PEOPLE = 10_000
MAX_BYTES = 16 * 2**20


def read_people(file: BinaryIO) -> tuple[list[Person], list[Problem]]:
    """Those lines that have the form of a person, and what is wrong with the others."""
    text = _text_of(file)
    first = text.partition("\n")[0]
    delimiter = ";" if first.count(";") > first.count(",") else ","
    lines = _lines(text, delimiter)
    columns = _columns(next(lines, (0, []))[1])
    people, problems = [], []
    for line, cells in lines:
        if isinstance(cells, str):
            problems.append(Problem(line, cells))
        elif len(cells) != len(columns):
            text = f"It has {len(cells)} columns, and the first line has {len(columns)}."
            problems.append(Problem(line, text))
        else:
            people.append(_person(line, dict(zip(columns, cells, strict=True))))
        if len(people) > MAX_PEOPLE:
            raise BadRequest(f"The file has more than {MAX_PEOPLE:,} people: make several files of it.")
    return people, problems


def _text_of(file: BinaryIO) -> str:
    raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise BadRequest(f"The file has more than {MAX_BYTES >> 20} MiB: make several files of it.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadRequest(f"line {line}: The file is not UTF-8 text.") from None


def _lines(text: str, delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """The number of the line on which each begins, and its cells; or what is wrong with its form, which is
    the last one then: nobody knows where the next begins.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield line, "The quotation marks are not right from here on."
            return
        if any(cell.strip() for cell in cells):
            yield line, cells


def _columns(cells: Sequence[str]) -> list[str]:
    """A first line without names may be somebody's, with a password: it is not shown."""
    columns = [cell.strip().casefold() for cell in cells] if not isinstance(cells, str) else []
    if "name" not in columns:
        raise BadRequest(
            "The first line must name the columns: name and, if they are given, tenant, role and password."
        )
    for column in columns:
        if column not in COLUMNS:
            raise BadRequest(f"There is no column {column[:40]!r}. There are {', '.join(COLUMNS)}.")
        if columns.count(column) > 1:
            raise BadRequest(f"The column {column!r} is there twice.")
    return columns


def _person(line: int, cells: dict[str, str]) -> Person:
    """An empty cell is as if the column were not there; but an empty password is none."""
    return Person(
        line,
        cells["name"],
        cells.get("tenant", "").strip() or "default",
        cells.get("role", "").strip().casefold() or "member",
        cells.get("password"),
    )
