"""What a turn costs: list prices in dollars per million tokens, by the beginning of the model's name."""

from __future__ import annotations

from collections.abc import Iterable

from agentapp.agents.provider import Usage

# (a model's name begins with, dollars per million tokens in, dollars per million tokens out)
PRICES = (
    ("claude-opus-4-1", 15.0, 75.0),
    ("claude-opus-4-0", 15.0, 75.0),
    ("claude-opus-4-2", 15.0, 75.0),  # the dated names of the first Opus 4
    ("claude-opus-4", 5.0, 25.0),
    ("claude-sonnet-4", 3.0, 15.0),
    ("claude-haiku-4", 1.0, 5.0),
)


def cost_in_microusd(spent: Iterable[tuple[str, Usage]]) -> int | None:
    """Millionths of a dollar for (model, usage) pairs, or None if the price of one of them is not known."""
    total = 0.0
    for model, usage in spent:
        price = next(((i, o) for beginning, i, o in PRICES if model.startswith(beginning)), None)
        if price is None:
            return None
        total += usage.input_tokens * price[0] + usage.output_tokens * price[1]
    return round(total)
