"""Chats with any number of turns, written straight into the database, and what their pages must show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select

from agentapp.events import AgentStarted, Text, TurnStarted
from agentapp.isolation import Scope, new_id
from agentapp.storage.db import Database
from agentapp.storage.models import ChatSession, Message, Turn
from agentapp.storage.values import Versions
from tests.support.times import utc_now


def add_turns(db: Database, scope: Scope, follows: Sequence[int], reply: str = "") -> list[str]:
    """One turn for each of these numbers, which it follows, in an empty chat; and their ids. Turn 7 asks
    "Question 7." and is told "Answer 7.", or that reply. No HTML is kept.
    """
    owner = {"tenant_id": scope.tenant_id, "user_id": scope.user_id, "session_id": scope.session_id}
    now, ids = utc_now(), [new_id() for _ in follows]
    turns: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for number, (turn_id, before) in enumerate(zip(ids, follows, strict=True), 1):
        said = {"user": f"Question {number}.", "assistant": reply or f"Answer {number}."}
        log = [TurnStarted(turn_id, scope.session_id), AgentStarted("triage"), Text(said["assistant"])]
        turns.append(
            {
                **owner,
                "id": turn_id,
                "request_id": "r",
                "number": number,
                "follows": before,
                "status": "completed",
                "agent": "triage",
                "next_agent": "",
                "log": [event.packed() for event in log],
                "input_tokens": 10,
                "output_tokens": 20,
                "model_calls": 1,
                "started_at": now,
                "ended_at": now,
            }
        )
        messages += [
            {
                **owner,
                "id": new_id(),
                "turn_id": turn_id,
                "seq": 2 * number - (role == "user"),
                "role": role,
                "content": content,
                "created_at": now,
            }
            for role, content in said.items()
        ]
    if turns:
        with db.writing() as writing:
            writing.execute(insert(Turn), turns)
            writing.execute(insert(Message), messages)
    return ids


def scope_of(db: Database, chat: str) -> Scope:
    """The scope of a chat's owner, whoever that is."""
    owner = select(ChatSession.tenant_id, ChatSession.user_id).where(ChatSession.id == chat)
    with db.engine.connect().execution_options(agentapp_migrates=True) as connection:
        tenant_id, user_id = connection.execute(owner).one()
    return Scope(request_id="r", tenant_id=tenant_id, user_id=user_id, session_id=chat)


def straight(length: int) -> range:
    """What the turns of a chat without versions follow."""
    return range(length)


def branch(follows: Sequence[int], through: int) -> list[int]:
    """The numbers of the turns on the way to this one, and then the newest turn after each: all of them, in
    the simplest way.
    """
    newest_after = {before: number for number, before in enumerate(follows, 1)}
    found = [through]
    while follows[found[0] - 1]:
        found.insert(0, follows[found[0] - 1])
    while found[-1] in newest_after:
        found.append(newest_after[found[-1]])
    return found


def versions(follows: Sequence[int], ids: Sequence[str]) -> dict[str, Versions]:
    """By the id of the turn, for each turn that has more than one version."""
    versions_after: dict[int, list[str]] = {}
    for turn_id, before in zip(ids, follows, strict=True):
        versions_after.setdefault(before, []).append(turn_id)
    return {
        turn_id: Versions(at + 1, len(group), [None, *group][at], [*group, None][at + 1])
        for group in versions_after.values()
        if len(group) > 1
        for at, turn_id in enumerate(group)
    }
