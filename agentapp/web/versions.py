"""Which of a chat's turns are shown: the branch through one of them. And where the other versions are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentapp.errors import NotFound
from agentapp.storage.values import StoredTurn


@dataclass(frozen=True, slots=True)
class Versions:
    """A turn is version ``number`` of ``total``. ``previous`` and ``next`` are the ids beside it, if any."""

    number: int
    total: int
    previous: str | None
    next: str | None


def branch(turns: Sequence[StoredTurn], through: str | None = None) -> list[StoredTurn]:
    """The turns from the beginning to the turn with this id, and then the newest turn after each.

    Without an id it is the branch of the newest turn of all.
    """
    if not turns:
        return []
    by_number = {turn.number: turn for turn in turns}
    newest_after = {turn.follows: turn for turn in turns}  # turns are in order, so the newest one stays
    here = turns[-1] if through is None else _turn_with_id(turns, through)
    shown = [here]
    while (before := by_number.get(shown[0].follows)) is not None:
        shown.insert(0, before)
    while (after := newest_after.get(shown[-1].number)) is not None:
        shown.append(after)
    return shown


def versions(turns: Sequence[StoredTurn]) -> dict[str, Versions]:
    """By the id of the turn, for each turn that has more than one version."""
    versions_after: dict[int, list[str]] = {}
    for turn in turns:
        versions_after.setdefault(turn.follows, []).append(turn.id)
    return {
        turn_id: Versions(at + 1, len(ids), [None, *ids][at], [*ids, None][at + 1])
        for ids in versions_after.values()
        if len(ids) > 1
        for at, turn_id in enumerate(ids)
    }


def _turn_with_id(turns: Sequence[StoredTurn], turn_id: str) -> StoredTurn:
    for turn in turns:
        if turn.id == turn_id:
            return turn
    raise NotFound("There is no such turn.")
