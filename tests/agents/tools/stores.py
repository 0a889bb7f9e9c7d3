"""Stores for the tools to work on: notes and past chats in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentapp.agents.provider import ToolCall
from agentapp.agents.tool import Tool, ToolContext, ToolInputError
from agentapp.isolation import Scope


class Stores:
    """Kept apart by scope like the real stores."""

    def __init__(self) -> None:
        self.notes: dict[str, dict[int, str]] = {}
        self.hits: dict[str, list[tuple[str, str, str]]] = {}
        self.searched: list[tuple[str, str, int]] = []

    def add(self, scope: Scope, text: str) -> int:
        own = self.notes.setdefault(scope.session_id, {})
        number = max(own, default=0) + 1
        own[number] = text
        return number

    def all(self, scope: Scope) -> Sequence[tuple[int, str]]:
        return list(self.notes.get(scope.session_id, {}).items())

    def remove(self, scope: Scope, number: int) -> bool:
        return self.notes.get(scope.session_id, {}).pop(number, None) is not None

    def search(self, scope: Scope, words: str, limit: int) -> Sequence[tuple[str, str, str]]:
        self.searched.append((scope.user_id, words, limit))
        return self.hits.get(scope.user_id, [])


def call(stores: Stores, tool: Tool, *, user: str = "ada", session: str = "s1", **values: Any) -> str:
    scope = Scope(request_id="r", tenant_id="t", user_id=user, session_id=session)
    return str(tool.call(ToolContext(scope, stores, stores), ToolCall("1", tool.name, values)))


def refusal_of(stores: Stores, tool: Tool, **values: Any) -> str:
    with pytest.raises(ToolInputError) as caught:
        call(stores, tool, **values)
    return str(caught.value)
