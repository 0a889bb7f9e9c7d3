"""New chats: how many a user may make in a time, in all workers together."""

from __future__ import annotations

from dataclasses import replace

from agentapp.errors import RateLimited
from agentapp.guardrails.bucket import Rate
from agentapp.guardrails.cell import Cell, CellPolicy, Key
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.wording import stamp_refusal

SCOPE = "new-chats"


class NewChats:
    def __init__(self, guardrails: Guardrails, rate: tuple[int, float] | None) -> None:
        self._guardrails, self._rate = guardrails, rate

    def count(self, user_id: str) -> None:
        """The user is about to make a chat. Raises `RateLimited` if there were too many lately."""
        if self._rate is None:
            return

        def one_more(cell: Cell) -> Cell:
            return replace(cell, bucket=cell.bucket.take(self._guardrails.clock()))

        try:
            self._guardrails.registry.update(Key(SCOPE, user_id), one_more)
        except RateLimited as refusal:
            raise stamp_refusal(refusal, SCOPE) from None


def new_chat_policies(rate: Rate | None) -> dict[str, CellPolicy]:
    return {SCOPE: CellPolicy(rate=rate)}
