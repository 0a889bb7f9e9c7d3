"""A chat in the form that its page or an export needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta

from markupsafe import Markup

from agentapp.storage.values import BranchPage, Chat, StoredTurn, Transcript, Versions
from agentapp.web.parts import utc_now
from agentapp.web.steps import Step, steps_of


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
    can_retry: bool
    request_id: str
    started_at: datetime
    activity: tuple[Step, ...]
    usage: dict[str, int]
    versions: Versions | None


def turn_views(page: BranchPage, html: Mapping[str, Markup]) -> list[TurnView]:
    """``html`` is the reply of each turn that has one, by the turn's id."""
    texts = {(message.turn_id, message.role): message.content for message in page.messages}
    return [_turn_view(turn, texts, html.get(turn.id), page.versions.get(turn.id)) for turn in page.turns]


def with_pinned(pinned: list[Chat], chats: Iterable[Chat]) -> list[tuple[str, list[Chat]]]:
    """The pinned ones under a heading of their own, and the others by day."""
    return [("Pinned", pinned), *by_day(chats)] if pinned else by_day(chats)


def by_day(chats: Iterable[Chat]) -> list[tuple[str, list[Chat]]]:
    """The chats in the order given, grouped under a heading for each day (UTC)."""
    today = utc_now().date()
    groups: list[tuple[str, list[Chat]]] = []
    for chat in chats:
        label = _day_heading(chat.updated_at.date(), today)
        if not groups or groups[-1][0] != label:
            groups.append((label, []))
        groups[-1][1].append(chat)
    return groups


def as_json(whole: Transcript) -> dict[str, object]:
    """The whole chat, with every version of every turn."""
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
    """The chat as its page shows it: only the newest version of each turn."""
    agents = {turn.id: turn.result.agent for turn in _newest_branch(whole.turns)}
    sections = [f"# {whole.chat.title}\n"]
    for message in whole.messages:
        if message.turn_id not in agents:
            continue
        author = "You" if message.role == "user" else (agents[message.turn_id] or "assistant").capitalize()
        sections.append(f"## {author}, {message.created_at:%Y-%m-%d %H:%M} UTC\n\n{message.content}\n")
    return "\n".join(sections)


def _newest_branch(turns: Sequence[StoredTurn]) -> Iterator[StoredTurn]:
    """The newest turn and all turns on the way to it, from its end."""
    by_number = {turn.number: turn for turn in turns}
    turn = turns[-1] if turns else None
    while turn is not None:
        yield turn
        turn = by_number.get(turn.follows)


def _turn_view(
    turn: StoredTurn,
    texts: Mapping[tuple[str, str], str],
    html: Markup | None,
    own_versions: Versions | None,
) -> TurnView:
    """``texts`` are the messages of the chat, by the id of their turn and by role."""
    reply = texts.get((turn.id, "assistant"), "")
    result = turn.result
    error = {"code": result.error_code, "message": result.error_message or ""} if result.error_code else None
    return TurnView(
        id=turn.id,
        status=turn.status,
        agent=result.agent,
        user_text=texts.get((turn.id, "user"), ""),
        reply=reply or turn.reply_so_far,
        html=html,
        error=error,
        can_retry=result.can_retry,
        request_id=turn.request_id,
        started_at=turn.started_at,
        activity=steps_of(turn.activity),
        usage=_usage(turn),
        versions=own_versions,
    )


def _turn_json(turn: StoredTurn, ids: dict[int, str]) -> dict[str, object]:
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


def _day_heading(day: date, today: date) -> str:
    if day == today:
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    return f"{day.day} {day:%B %Y}"
