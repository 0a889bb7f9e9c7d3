"""Refusals, counted where people and models are told of them."""

from __future__ import annotations

from agentapp.errors import GuardrailRefused
from agentapp.telemetry.protocol import Telemetry


def count_refusal(telemetry: Telemetry, refusal: GuardrailRefused, tenant_id: str = "") -> None:
    telemetry.count("refusals_total", tenant_id=tenant_id, code=refusal.code, scope=refusal.scope)
