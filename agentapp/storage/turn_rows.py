"""Between the rows of turns and the values made of them."""

from __future__ import annotations

from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from agentapp.events import Event, Status, TurnResult, Usage, from_json
from agentapp.isolation import Scope
from agentapp.storage.models import Turn, TurnEvents
from agentapp.storage.owned import in_session


def columns_of(result: TurnResult) -> dict[str, object]:
    return {
        "status": result.status,
        "agent": result.agent,
        "next_agent": result.next_agent,
        "input_tokens": result.usage.input_tokens,
        "output_tokens": result.usage.output_tokens,
        "model_calls": result.usage.model_calls,
        "cost_microusd": result.cost_microusd,
        "error_code": result.error_code,
        "error_message": result.error_message,
    }


def result_of(row: Turn, *, reply: str = "", title: str = "") -> TurnResult:
    return TurnResult(
        status=cast(Status, row.status),
        reply=reply,
        agent=row.agent,
        next_agent=row.next_agent,
        title=title,
        usage=Usage(row.input_tokens, row.output_tokens, row.model_calls),
        cost_microusd=row.cost_microusd,
        error_code=row.error_code,
        error_message=row.error_message,
    )


def events_so_far(db: Session, scope: Scope, turn_id: str) -> list[Event]:
    """The events of a running turn that have been stored so far."""
    query = select(TurnEvents.events).where(in_session(scope, TurnEvents), TurnEvents.turn_id == turn_id)
    rows = db.scalars(query.order_by(TurnEvents.first))
    return [from_json(kind, data) for events in rows for kind, data in events]
