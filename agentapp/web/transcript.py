"""A chat as the page, an export or a reader wants to see it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import Any

from markupsafe import Markup

from agentapp.storage.values import Chat, StoredTurn, Transcript, utc_now
from agentapp.web.markdown import render
from agentapp.web.steps import steps_of
from agentapp.web.versions import Versions, branch, versions


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn on the page."""

    id: str
    status: str
    agent: str
    user_text: str
    reply: str
    html: Markup | None
    error: dict[str, str] | None
    request_id: str
    started_at: Any
    activity: tuple[dict[str, Any], ...]
    usage: dict[str, int]
    versions: Versions | None


def turn_views(whole: Transcript, shown: Sequence[StoredTurn]) -> list[TurnView]:
    said = {(message.turn_id, message.role): message.content for message in whole.messages}
    others = versions(whole.turns)
    return [_view(turn, said, others.get(turn.id)) for turn in shown]


def by_day(chats: Iterable[Chat]) -> list[tuple[str, list[Chat]]]:
    """Chats in the order given, under a heading for each day (UTC)."""
    today = utc_now().date()
    groups: list[tuple[str, list[Chat]]] = []
    for chat in chats:
        label = _day(chat.updated_at.date(), today)
        if not groups or groups[-1][0] != label:
            groups.append((label, []))
        groups[-1][1].append(chat)
    return groups


def as_json(whole: Transcript) -> dict[str, Any]:
    """All of it, with every version of every turn."""
    chat = whole.chat
    ids = {turn.number: turn.id for turn in whole.turns}
    return {
        "session": {"id": chat.id, "title": chat.title, "created_at": chat.created_at.isoformat()},
        "turns": [_turn_json(turn, ids) for turn in whole.turns],
        "messages": [
            {
                "seq": message.seq,
                "turn_id": message.turn_id,
                "role": message.role,
                "content": message.content,
                "created_at": message.created_at.isoformat(),
            }
            for message in whole.messages
        ],
    }


def as_markdown(whole: Transcript) -> str:
    """As the page shows it: of each turn the newest version."""
    agents = {turn.id: turn.result.agent for turn in branch(whole.turns)}
    parts = [f"# {whole.chat.title}\n"]
    for message in whole.messages:
        if message.turn_id not in agents:
            continue
        who = "You" if message.role == "user" else (agents[message.turn_id] or "assistant").capitalize()
        parts.append(f"## {who}, {message.created_at:%Y-%m-%d %H:%M} UTC\n\n{message.content}\n")
    return "\n".join(parts)


def _view(turn: StoredTurn, said: dict[tuple[str, str], str], others: Versions | None) -> TurnView:
    reply = said.get((turn.id, "assistant"), "")
    result = turn.result
    error = {"code": result.error_code, "message": result.error_message or ""} if result.error_code else None
    return TurnView(
        id=turn.id,
        status=turn.status,
        agent=result.agent,
        user_text=said.get((turn.id, "user"), ""),
        reply=reply or turn.reply_so_far,
        html=render(reply) if reply else None,
        error=error,
        request_id=turn.request_id,
        started_at=turn.started_at,
        activity=steps_of(turn.activity),
        usage=_usage(turn),
        versions=others,
    )


def _turn_json(turn: StoredTurn, ids: dict[int, str]) -> dict[str, Any]:
    return {
        "id": turn.id,
        "follows": ids.get(turn.follows),
        "status": turn.status,
        "agent": turn.result.agent,
        "usage": _usage(turn),
        "cost_usd": turn.result.cost_usd,
        "started_at": turn.started_at.isoformat(),
        "ended_at": turn.ended_at.isoformat() if turn.ended_at else None,
    }


def _usage(turn: StoredTurn) -> dict[str, int]:
    return asdict(turn.result.usage)


def _day(day: date, today: date) -> str:
    if day == today:
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    return f"{day.day} {day:%B %Y}"
