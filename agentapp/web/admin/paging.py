"""Long lists in pages: each begins after the last row of the page before, which an index finds at once.

A query asks for one row more than a page has. If it comes there is a next page.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flask import json, request

from agentapp.errors import BadRequest
from agentapp.web.incoming import query_text

PAGE_ROWS = 50
MAX_CURSOR_CHARS = 512
NO_SUCH_PAGE = "There is no such page. Begin again with the first one."

Row = TypeVar("Row")
Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """``next`` is where the next page begins, as `after` reads it; None if there is none."""

    rows: Sequence[Row]
    next: str | None
    is_first: bool


def after(*kinds: type[str] | type[int]) -> Key | None:
    """The key of the last row of the page before. It has one part for each of ``kinds``."""
    text = query_text("after", max_chars=MAX_CURSOR_CHARS)
    if not text:
        return None
    try:
        parts = json.loads(urlsafe_b64decode(text.encode()))
    except (NotBase64, ValueError):
        raise BadRequest(NO_SUCH_PAGE) from None
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds):
        raise BadRequest(NO_SUCH_PAGE)
    if not all(_can_be_stored(part) for part in parts):
        raise BadRequest(NO_SUCH_PAGE)
    return tuple(parts)


def page_of(found: Sequence[Row], key: Callable[[Row], Key], rows: int = PAGE_ROWS) -> Page[Row]:
    """``found`` has one row more than the page if there is another page."""
    more = len(found) > rows
    shown = found[:rows]
    return Page(shown, _written(key(shown[-1])) if more else None, not request.args.get("after"))


def _written(key: Key) -> str:
    return urlsafe_b64encode(json.dumps(list(key)).encode()).decode()


def _can_be_stored(part: str | int) -> bool:
    """Whether a database can compare it with what it has."""
    if isinstance(part, int):
        return abs(part) < 2**63
    try:
        return b"\0" not in part.encode()
    except UnicodeEncodeError:
        return False
