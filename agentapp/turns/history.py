"""What the model is shown of the conversation before this turn."""

from __future__ import annotations

from agentapp.agents.provider import Message

MAX_HISTORY_CHARS = 60_000
STEP_CHARS = 15_000


def history(said: tuple[tuple[str, str], ...]) -> tuple[Message, ...]:
    """Earlier messages as a model wants them: the newest that fit, roles alternating, a user's first.

    If not all of them fit, the oldest are left out many at a time. Then the conversation begins with the same
    message for some turns, and a provider's cache knows it again.
    """
    too_many = sum([len(content) for _, content in said]) - MAX_HISTORY_CHARS
    left_out = -(-too_many // STEP_CHARS) * STEP_CHARS
    passed = 0
    kept: list[Message] = []
    for role, content in said:
        passed += len(content)
        if passed - len(content) < left_out or (not kept and role != "user"):
            continue
        if kept and kept[-1].role == role:
            kept[-1] = Message(kept[-1].role, (*kept[-1].texts, content))
        else:
            kept.append(Message("user" if role == "user" else "assistant", (content,)))
    return tuple(kept)
