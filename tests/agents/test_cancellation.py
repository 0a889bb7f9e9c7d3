"""Cancelling a model call."""

from __future__ import annotations

from agentapp.agents.provider import Cancellation


def test_the_last_action_is_called_once_whether_it_is_set_before_or_after_the_cancel() -> None:
    ended: list[str] = []
    early, late, over = Cancellation(), Cancellation(), Cancellation()
    early.cancel()
    early.on_cancel(lambda: ended.append("early"))
    late.on_cancel(lambda: ended.append("replaced"))
    late.on_cancel(lambda: ended.append("late"))
    late.cancel()
    late.cancel()
    over.on_cancel(lambda: ended.append("over"))
    over.clear()
    over.cancel()
    assert ended == ["early", "late"]
    assert all(each.is_cancelled for each in (early, late, over))
