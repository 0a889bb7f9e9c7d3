"""What the operator is told of a turn: lines in the log, and alerts. The ids are those of its scope."""

from __future__ import annotations

import logging
import time

from agentapp.errors import ProviderError, TurnFailed
from agentapp.events import TurnResult
from agentapp.telemetry import Telemetry
from agentapp.turns.values import RunningTurn

log = logging.getLogger(__name__)


def report_beginning(agent: str) -> None:
    log.debug("turn began", extra={"agent": agent or None})


def report_end(
    telemetry: Telemetry,
    result: TurnResult,
    failure: TurnFailed | None,
    setup_faults: tuple[tuple[str, str], ...],
    began: float,
) -> None:
    """A turn that failed is a warning. It has the id that the person sees, and the one that the provider
    knows the call by. ``setup_faults`` are models, and why they cannot be used as they are set up.
    """
    for model, cause in setup_faults:
        telemetry.alert("provider-setup", cause, subject=model)
    level = logging.WARNING if result.status == "failed" else logging.INFO
    if not log.isEnabledFor(level):
        return
    told = {
        "turn_status": result.status,
        "code": result.error_code,
        "agent": result.agent or None,
        "input_tokens": result.usage.input_tokens,
        "output_tokens": result.usage.output_tokens,
        "cost_usd": result.cost_usd,
        "ms": round((time.monotonic() - began) * 1000, 1),
        "provider_request_id": failure.provider_request_id if isinstance(failure, ProviderError) else None,
    }
    log.log(level, "turn ended", extra=told)


def report_lost_worker(turn: RunningTurn) -> None:
    """Whoever finds it interrupts it, in a request of their own. The person sees the id of the turn's."""
    told = {"turn_status": "interrupted", "turn_id": turn.id, "request_id": turn.request_id}
    log.warning("turn has lost its worker", extra=told)
