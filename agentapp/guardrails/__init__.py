"""Guardrails: breakers, rate limits, budgets, bulkheads as pure values; and the registry that keeps them."""

from agentapp.errors import BreakerOpen, BudgetExhausted, Busy, GuardrailRefused, RateLimited
from agentapp.guardrails.breaker import Breaker, BreakerPolicy, Breakers
from agentapp.guardrails.bucket import Bucket, Rate
from agentapp.guardrails.budget import Allowance, Budget
from agentapp.guardrails.cell import Cell, CellPolicy, Cells, Key
from agentapp.guardrails.local import LocalBreakers
from agentapp.guardrails.registry import Registry, Rows, Store

__all__ = [
    "Allowance",
    "Breaker",
    "BreakerOpen",
    "BreakerPolicy",
    "Breakers",
    "Bucket",
    "Budget",
    "BudgetExhausted",
    "Busy",
    "Cell",
    "CellPolicy",
    "Cells",
    "GuardrailRefused",
    "Key",
    "LocalBreakers",
    "Rate",
    "RateLimited",
    "Registry",
    "Rows",
    "Store",
]
