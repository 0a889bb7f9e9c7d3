"""Reads one file and extracts its facts. Nothing that is read is imported or run."""

from __future__ import annotations

import re
import tokenize
import warnings
from dataclasses import dataclass
from io import BytesIO

from agentapp.audit.extract import extract
from agentapp.audit.facts import Module


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a file and the name of its module.

    ``aliases`` lists the packages beside it that got another name because a second directory has a package
    of the same name: the name in imports, and the name that the auditor uses.
    """

    where: str  # the absolute path
    path: str  # as it is shown in messages
    module: str
    is_package: bool
    aliases: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class File:
    place: Place
    source: bytes


class Unreadable(Exception):
    """A file or directory could not be read."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(why)
        self.path, self.line, self.why = path, line, why


def open_file(place: Place) -> File:
    try:
        with open(place.where, "rb") as file:
            return File(place, file.read())
    except OSError as exc:
        raise Unreadable(place.path, 1, reason_of(exc)) from None


def read(file: File) -> Module:
    """Extract the facts of a file. Raises `Unreadable`."""
    place = file.place
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # agentapp: shared ok - restored on exit; one thread
            return extract(file.source, place.module, place.path, is_package=place.is_package)
    except SyntaxError as exc:
        raise Unreadable(place.path, exc.lineno or 1, f"is not Python: {exc.msg}") from None
    except ValueError as exc:
        raise Unreadable(place.path, 1, f"is not Python: {exc}") from None
    except (RecursionError, MemoryError):
        raise Unreadable(place.path, 1, "is nested too deeply to be understood") from None


def reason_of(exc: OSError | ValueError) -> str:
    """Why a path cannot be opened, worded to follow the path in a message."""
    if isinstance(exc, FileNotFoundError):
        return "does not exist"
    return f"cannot be read: {getattr(exc, 'strerror', None) or exc}"


def lines_of(source: bytes) -> list[str]:
    """Split into lines as Python does. Bytes that do not fit the encoding are replaced."""
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(source).readline)
        text = source.decode(encoding, "replace")
    except (SyntaxError, LookupError, UnicodeError):
        text = source.decode("utf-8", "replace")
    return re.split(r"\r\n|\r|\n", text)
