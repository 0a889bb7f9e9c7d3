"""What the calculator can compute, in decimals. A ValueError's text is a sentence for the person."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal, DivisionByZero
from types import MappingProxyType

from agentapp.agents.tools.calculator.angles import cos, pi, sin, tan

WORKING_DIGITS = 400
MAX_EXPONENT = 9999
MAX_FACTORIAL = 1000


@dataclass(frozen=True, slots=True)
class Function:
    """Takes one argument at least and `most` at most."""

    compute: Callable[..., Decimal]
    most: float = 1


def divide(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        raise DivisionByZero  # decimals call 0/0 an invalid operation; to people it is the same mistake
    return a / b


def floor_divide(a: Decimal, b: Decimal) -> tuple[Decimal, Decimal]:
    if not b:
        raise DivisionByZero
    quotient, remainder = divmod(a, b)
    if remainder and (remainder < 0) != (b < 0):
        return quotient - 1, remainder + b
    return quotient, remainder


def power(a: Decimal, b: Decimal) -> Decimal:
    if not a and b < 0:
        raise DivisionByZero
    if not a and not b:
        return Decimal(1)
    # No limit is needed here: decimals see from the size of the exponent that 9^9^9 is too large for them.
    return a**b


def factorial(x: Decimal) -> Decimal:
    if x != x.to_integral_value() or not 0 <= x <= MAX_FACTORIAL:
        raise ValueError(f"factorial takes whole numbers from 0 to {MAX_FACTORIAL}")
    return +Decimal(math.factorial(int(x)))


def _round(x: Decimal, places: Decimal = Decimal(0)) -> Decimal:
    if places != places.to_integral_value() or abs(places) > WORKING_DIGITS:
        raise ValueError(f"round takes whole places from -{WORKING_DIGITS} to {WORKING_DIGITS}")
    exponent = x.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= -int(places):
        return x
    # A context of its own: this rounding was asked for and must not turn the answer's "=" into "≈".
    return x.quantize(
        Decimal(1).scaleb(-int(places)), rounding=ROUND_HALF_UP, context=Context(prec=WORKING_DIGITS)
    )


def _floor(x: Decimal) -> Decimal:
    return x.to_integral_value(ROUND_FLOOR)


def _ceil(x: Decimal) -> Decimal:
    return x.to_integral_value(ROUND_CEILING)


def _least(*numbers: Decimal) -> Decimal:
    return min(numbers)


def _greatest(*numbers: Decimal) -> Decimal:
    return max(numbers)


def _sqrt(x: Decimal) -> Decimal:
    if x < 0:
        raise ValueError("sqrt takes no negative numbers")
    return x.sqrt()


def _ln(x: Decimal) -> Decimal:
    return _positive(x).ln()


def _log(x: Decimal, base: Decimal = Decimal(10)) -> Decimal:
    if base == 10:
        return _positive(x).log10()
    return divide(_positive(x).ln(), _positive(base).ln())


def _positive(x: Decimal) -> Decimal:
    if x <= 0:
        raise ValueError("a logarithm takes numbers above zero")
    return x


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "sqrt": Function(_sqrt),
        "abs": Function(abs),
        "round": Function(_round, most=2),
        "floor": Function(_floor),
        "ceil": Function(_ceil),
        "min": Function(_least, most=math.inf),
        "max": Function(_greatest, most=math.inf),
        "factorial": Function(factorial),
        "exp": Function(Decimal.exp),
        "ln": Function(_ln),
        "log": Function(_log, most=2),
        "log10": Function(_log),
        "sin": Function(sin),
        "cos": Function(cos),
        "tan": Function(tan),
    }
)
CONSTANTS: Mapping[str, Callable[[], Decimal]] = MappingProxyType({"pi": pi, "e": Decimal(1).exp})
