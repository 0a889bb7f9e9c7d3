"""Which of a chat's turns are shown: the branch through one of them, and where other versions are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentapp.errors import NotFound
from agentapp.storage.values import StoredTurn


@dataclass(frozen=True, slots=True)
class Versions:
    """This is number so-and-so of so many; the ids of its neighbours."""

    number: int
    total: int
    previous: str | None
    next: str | None


def branch(turns: Sequence[StoredTurn], through: str | None = None) -> list[StoredTurn]:
    """From the beginning to this turn and on by the newest ones after it; by default to the newest of all."""
    if not turns:
        return []
    by_number = {turn.number: turn for turn in turns}
    newest_after = {turn.follows: turn for turn in turns}  # in order, so that the newest wins
    here = turns[-1] if through is None else _named(turns, through)
    shown = [here]
    while (before := by_number.get(shown[0].follows)) is not None:
        shown.insert(0, before)
    while (after := newest_after.get(shown[-1].number)) is not None:
        shown.append(after)
    return shown


def versions(turns: Sequence[StoredTurn]) -> dict[str, Versions]:
    """For each turn of which there is more than one version."""
    families: dict[int, list[str]] = {}
    for turn in turns:
        families.setdefault(turn.follows, []).append(turn.id)
    return {
        turn_id: Versions(at + 1, len(family), [None, *family][at], [*family, None][at + 1])
        for family in families.values()
        if len(family) > 1
        for at, turn_id in enumerate(family)
    }


def _named(turns: Sequence[StoredTurn], turn_id: str) -> StoredTurn:
    for turn in turns:
        if turn.id == turn_id:
            return turn
    raise NotFound("There is no such turn.")
