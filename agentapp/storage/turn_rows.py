"""Between the rows of turns and the values made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from agentapp.events import Event, Rendered, Status, Text, TurnResult, Usage, agent_of, from_json, text_of
from agentapp.isolation import Scope
from agentapp.storage.models import Turn, TurnEvents
from agentapp.storage.owned import OWNER, in_session, owner_parameters
from agentapp.storage.statements import Statement
from agentapp.storage.values import StoredTurn

EVENTS_SO_FAR = Statement(
    select(TurnEvents.events)
    .where(in_session(OWNER, TurnEvents), TurnEvents.turn_id == bindparam("turn"))
    .order_by(TurnEvents.first)
)


def columns_of(result: TurnResult) -> dict[str, object]:
    return {
        "status": result.status,
        "agent": result.agent,
        "next_agent": result.next_agent,
        "error_code": result.error_code,
        "error_message": result.error_message,
        "can_retry": None if result.can_retry else False,
        **columns_of_usage(result),
    }


def columns_of_usage(result: TurnResult) -> dict[str, object]:
    return {
        "input_tokens": result.usage.input_tokens,
        "output_tokens": result.usage.output_tokens,
        "model_calls": result.usage.model_calls,
        "cache_read_tokens": result.usage.cache_read_tokens,
        "cache_write_tokens": result.usage.cache_write_tokens,
        "cost_microusd": result.cost_microusd,
    }


def usage_of(row: Any) -> Usage:
    """``row`` has the columns of `columns_of_usage`."""
    return Usage(
        row.input_tokens,
        row.output_tokens,
        row.model_calls,
        row.cache_read_tokens,
        row.cache_write_tokens,
    )


def columns_of_rendered(rendered: Rendered | None) -> dict[str, str | None]:
    if rendered is None:
        return {"html": None, "renderer": None}
    return {"html": rendered.html, "renderer": rendered.renderer}


def rendered_of(row: Any) -> Rendered | None:
    """``row`` has the columns ``html`` and ``renderer`` of a message."""
    return None if row.html is None else Rendered(row.html, row.renderer or "")


def result_of(row: Turn, *, reply: str = "", title: str = "", rendered: Rendered | None = None) -> TurnResult:
    return TurnResult(
        status=cast(Status, row.status),
        reply=reply,
        agent=row.agent,
        next_agent=row.next_agent,
        title=title,
        usage=usage_of(row),
        cost_microusd=row.cost_microusd,
        error_code=row.error_code,
        error_message=row.error_message,
        can_retry=row.can_retry is not False,
        rendered=rendered,
    )


def stored_turn(db: Session, scope: Scope, row: Turn) -> StoredTurn:
    result = result_of(row)
    if result.status == "running":
        events = events_so_far(db, scope, row.id)
        result = replace(result, agent=agent_of(events))
        activity = [event for event in events if not isinstance(event, Text)]
    else:
        events = []
        activity = [from_json(*entry) for entry in row.log if not isinstance(entry, int)]
    return StoredTurn(
        id=row.id,
        number=row.number,
        follows=row.follows,
        result=result,
        activity=tuple(activity),
        reply_so_far=text_of(events),
        request_id=row.request_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def events_so_far(db: Session, scope: Scope, turn_id: str) -> list[Event]:
    """The events of a running turn that have been stored so far."""
    rows = db.connection().execute(EVENTS_SO_FAR.built, {**owner_parameters(scope), "turn": turn_id})
    return events_in(rows.all())


def events_in(rows: Sequence[Sequence[Any]]) -> list[Event]:
    """``rows`` are what `EVENTS_SO_FAR` gives."""
    return [from_json(kind, data) for (events,) in rows for kind, data in events]
