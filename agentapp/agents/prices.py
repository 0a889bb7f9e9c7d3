"""What a turn costs: dollars per million tokens, by the beginning of the model's name."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from agentapp.events import Usage

Price = tuple[str, float, float]  # a model's name begins with, dollars per million in, and out

LIST_PRICES: tuple[Price, ...] = (
    ("claude-opus-4-1", 15.0, 75.0),
    ("claude-opus-4-0", 15.0, 75.0),
    ("claude-opus-4-2", 15.0, 75.0),  # the dated names of the first Opus 4
    ("claude-opus-4", 5.0, 25.0),
    ("claude-sonnet-4", 3.0, 15.0),
    ("claude-haiku-4", 1.0, 5.0),
)


class Prices:
    """List prices, with an operator's own before them. A free model costs nothing, whatever its name."""

    def __init__(self, own: Iterable[Price] = (), *, free: bool = False) -> None:
        # The longest beginning that fits is meant, and of two equal ones the operator's.
        self._table = tuple(sorted((*own, *LIST_PRICES), key=lambda price: -len(price[0])))
        self._free = free

    def knows(self, model: str) -> bool:
        return self._free or any(model.startswith(beginning) for beginning, _, _ in self._table)

    def of(self, model: str) -> tuple[float, float]:
        """Millionths of a dollar for a token in and a token out. An unknown model counts as the dearest:
        a budget that let it through for nothing would be none.
        """
        if self._free:
            return 0.0, 0.0
        found = next((p for p in self._table if model.startswith(p[0])), None)
        return found[1:] if found else (max(p[1] for p in self._table), max(p[2] for p in self._table))

    def charge(self, spent: Iterable[tuple[str, Usage]]) -> int:
        """Millionths of a dollar, as a budget counts them."""
        total = 0.0
        for model, usage in spent:
            price_in, price_out = self.of(model)
            total += usage.input_tokens * price_in + usage.output_tokens * price_out
        return round(total)

    def cost(self, spent: Iterable[tuple[str, Usage]]) -> int | None:
        """The same, as people are told it: None if the price of one of the models is not known."""
        pairs = tuple(spent)
        return self.charge(pairs) if all(self.knows(model) for model, _ in pairs) else None

    def most(self, models: Iterable[str], tokens: int) -> int:
        """What so many tokens can cost at the most, with whichever of the models."""
        return ceil(tokens * max(max(self.of(model)) for model in models))
