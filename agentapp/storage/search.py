"""The search over what a user's chats say: its entries are written with each message and title, and looked up
by words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    Subquery,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal,
    select,
    table,
    union_all,
)
from sqlalchemy.dialects.postgresql import TSQUERY

from agentapp.isolation import Scope, UserScope
from agentapp.storage.models import SearchEntry
from agentapp.storage.owned import OWNER, in_session, owned_by, owner_parameters
from agentapp.storage.search_index import WAITING
from agentapp.storage.statements import DriverConnection, Statement
from agentapp.storage.words import asked_words, indexed_words

# A word may be in every message. Of all places that match, only this many of the newest are looked at.
MAX_MATCHES = 500

_FULL_TEXT = table("search_index", column("rowid"), column("search_index"))  # SQLite's: see migration 0005
_WORDS: BindParameter[str] = bindparam("indexed")
_ENTRY_COLUMNS = ("tenant_id", "user_id", "session_id", "message_id")
ADD_ENTRY: Mapping[str, Statement] = MappingProxyType(
    {
        "sqlite": Statement(insert(SearchEntry).inline().values(words=_WORDS), _ENTRY_COLUMNS),
        "postgresql": Statement(
            insert(SearchEntry)
            .inline()
            .values(words=func.array_to_tsvector(func.string_to_array(_WORDS, " "))),
            _ENTRY_COLUMNS,
        ),
    }
)
REMOVE_TITLE = Statement(
    delete(SearchEntry).where(in_session(OWNER, SearchEntry), SearchEntry.message_id.is_(None))
)


def index_message(db: DriverConnection, scope: Scope, message_id: str, content: str) -> None:
    """Make a new message of the scope's chat findable. Part of the transaction that writes the message."""
    _add_entry(db, scope, message_id, content)


def index_title(db: DriverConnection, scope: Scope, title: str) -> None:
    """Make the scope's chat findable by this title, and not by the one before."""
    db.run_later(REMOVE_TITLE, owner_parameters(scope))
    _add_entry(db, scope, None, title)


def newest_matches(dialect: str, scope: UserScope, query: str) -> Subquery | None:
    """The user's messages and titles that have all words of the query, or None if there is no word in it.

    Its columns are ``id``, ``session_id`` and ``message_id``, which is null for a title.
    """
    asked = asked_words(scope.user_id, query)
    if not asked:
        return None
    return _sqlite_matches(scope, asked) if dialect == "sqlite" else _postgresql_matches(scope, asked)


def _add_entry(db: DriverConnection, scope: Scope, message_id: str | None, text: str) -> None:
    words = indexed_words(scope.user_id, text)
    if words:
        values = {
            "tenant_id": scope.tenant_id,
            "user_id": scope.user_id,
            "session_id": scope.session_id,
            "message_id": message_id,
            "indexed": words,
        }
        db.run_later(ADD_ENTRY[db.dialect], values)


# A word has only letters, digits and marks, so nothing in it can end the quotes or mean anything else.


def _sqlite_matches(scope: UserScope, asked: Sequence[tuple[str, bool]]) -> Subquery:
    wanted = " AND ".join(f'"{word}"*' if goes_on else f'"{word}"' for word, goes_on in asked)
    found = select(_FULL_TEXT.c.rowid.label("id")).where(_FULL_TEXT.c.search_index.op("MATCH")(wanted))
    newest = found.order_by(_FULL_TEXT.c.rowid.desc()).limit(MAX_MATCHES).cte("newest")
    either = union_all(select(newest.c.id), _waiting_matches(scope, asked)).subquery()
    matches = select(either.c.id).order_by(either.c.id.desc()).limit(MAX_MATCHES).subquery()
    return _entries(scope).join(matches, matches.c.id == SearchEntry.id).subquery("matches")


def _waiting_matches(scope: UserScope, asked: Sequence[tuple[str, bool]]) -> Select[int]:
    """Of the entries that are not in the full-text index yet. There are those of the last moment."""
    words = literal(" ") + SearchEntry.words + " "
    has_all = [func.instr(words, f" {word}" if goes_on else f" {word} ") > 0 for word, goes_on in asked]
    waiting = select(SearchEntry.id).join(WAITING, WAITING.c.id == SearchEntry.id)
    return waiting.where(owned_by(scope, SearchEntry), *has_all)


def _postgresql_matches(scope: UserScope, asked: Sequence[tuple[str, bool]]) -> Subquery:
    wanted = " & ".join(f"'{word}':*" if goes_on else f"'{word}'" for word, goes_on in asked)
    has_all: ColumnElement[bool] = SearchEntry.words.op("@@")(cast(wanted, TSQUERY))
    # Materialized: otherwise the planner may walk through everybody's entries from the newest back.
    found = _entries(scope).where(has_all).cte("found").prefix_with("MATERIALIZED")
    return select(found).order_by(found.c.id.desc()).limit(MAX_MATCHES).subquery("matches")


def _entries(scope: UserScope) -> Select[int, str, str | None]:
    columns = (SearchEntry.id, SearchEntry.session_id, SearchEntry.message_id)
    return select(*columns).where(owned_by(scope, SearchEntry))
