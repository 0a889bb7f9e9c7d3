"""What the model is shown of the conversation before this turn."""

from __future__ import annotations

from agentapp.agents.provider import Message

MAX_HISTORY_CHARS = 60_000


def history(said: tuple[tuple[str, str], ...]) -> tuple[Message, ...]:
    """Earlier messages as a model wants them: the newest that fit, roles alternating, a user's first."""
    room = MAX_HISTORY_CHARS
    kept: list[Message] = []
    for role, content in reversed(said):
        room -= len(content)
        if room < 0:
            break
        if kept and kept[-1].role == role:
            kept[-1] = Message(kept[-1].role, (content, *kept[-1].texts))
        else:
            kept.append(Message("user" if role == "user" else "assistant", (content,)))
    while kept and kept[-1].role == "assistant":
        kept.pop()
    return tuple(reversed(kept))
