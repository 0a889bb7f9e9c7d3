"""What a turn costs: dollars per million tokens, by the beginning of the model's name."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from agentapp.events import Usage, UsagePart
from agentapp.parsing import Price

LIST_PRICES: tuple[Price, ...] = (
    ("claude-opus-4-1", 15.0, 75.0),
    ("claude-opus-4-0", 15.0, 75.0),
    ("claude-opus-4-2", 15.0, 75.0),  # the dated names of the first Opus 4
    ("claude-opus-4", 5.0, 25.0),
    ("claude-sonnet-4", 3.0, 15.0),
    ("claude-haiku-4", 1.0, 5.0),
)


class TokenPrices(NamedTuple):
    """Millionths of a dollar for a token of each kind. What goes in is ``input`` only if the provider neither
    reads it from its cache nor writes it there.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float

    @classmethod
    def of(cls, price: Price) -> TokenPrices:
        """Without prices for the cache, those that all models of the list have: a tenth for what is read, and
        a quarter more for what is written.
        """
        if len(price) == 5:
            return cls(*price[1:])
        return cls(price[1], price[2], cache_read=price[1] / 10, cache_write=price[1] * 1.25)

    def charge(self, usage: Usage) -> float:
        plain = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
        return (
            plain * self.input
            + usage.cache_read_tokens * self.cache_read
            + usage.cache_write_tokens * self.cache_write
            + usage.output_tokens * self.output
        )


FREE = TokenPrices(0.0, 0.0, 0.0, 0.0)


class Prices:
    """List prices, and the operator's own, which come first. With ``free``, every model costs nothing."""

    def __init__(self, own: Iterable[Price] = (), *, free: bool = False) -> None:
        # The longest beginning that fits counts, and of two equal ones the operator's.
        table = sorted((*own, *LIST_PRICES), key=lambda price: -len(price[0]))
        self._table = tuple((price[0], TokenPrices.of(price)) for price in table)
        self._dearest = TokenPrices(*map(max, zip(*(prices for _, prices in self._table), strict=True)))
        self._free = free

    def knows(self, model: str) -> bool:
        return self._free or any(model.startswith(beginning) for beginning, _ in self._table)

    def of(self, model: str) -> TokenPrices:
        """An unknown model counts as the dearest: otherwise it would cost a budget nothing."""
        if self._free:
            return FREE
        found = (prices for beginning, prices in self._table if model.startswith(beginning))
        return next(found, self._dearest)

    def charge(self, spent: Iterable[tuple[str, Usage]]) -> int:
        """Millionths of a dollar, as a budget counts them.

        Input that was estimated, because its provider has not said how much it was, counts as neither read
        from the cache nor written there. Most of a chat's input is read, at a tenth of that; at worst all of
        it is written, and a quarter more than this.
        """
        return round(sum(self.of(model).charge(usage) for model, usage in spent))

    def parts(self, calls: Iterable[tuple[str, str, Usage]]) -> tuple[UsagePart, ...]:
        """What each agent used of each model. Each part is rounded so that all of them add up to what
        `charge` gives: none is lost between two of them.
        """
        used: dict[tuple[str, str], Usage] = {}
        for agent, model, usage in calls:
            used[agent, model] = used.get((agent, model), Usage()) + usage
        parts, charge, charged = [], 0.0, 0
        for (agent, model), usage in used.items():
            charge += self.of(model).charge(usage)
            parts.append(UsagePart(agent, model, usage, round(charge) - charged))
            charged = round(charge)
        return tuple(parts)

    def cost(self, spent: Iterable[tuple[str, Usage]]) -> int | None:
        """The same, as people are told it: None if the price of one of the models is not known."""
        pairs = tuple(spent)
        return self.charge(pairs) if all(self.knows(model) for model, _ in pairs) else None

    def most(self, models: Iterable[str], tokens: int) -> int:
        """The most that this many tokens can cost, with any of the models: all of the dearest kind."""
        return ceil(tokens * max(max(self.of(model)) for model in models))
