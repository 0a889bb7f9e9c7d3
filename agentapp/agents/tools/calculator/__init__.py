"""The `calculate` tool: arithmetic in decimals. Its own parser computes the result, so no code is run."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import (
    Context,
    Decimal,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
    Underflow,
    localcontext,
)

from agentapp.agents.tool import ToolInputError, tool
from agentapp.agents.tools.calculator.functions import MAX_EXPONENT, WORKING_DIGITS
from agentapp.agents.tools.calculator.parser import Parser

MAX_EXPRESSION_CHARS = 500
# A rounded result is shown with this many digits. Working with far more keeps the rounding out of them.
SHOWN_DIGITS = 20


@tool
def calculate(expression: str) -> str:
    """Work out an arithmetic expression exactly in decimals. Always use it instead of mental arithmetic.

    Operators: + - * / ^ (or **), // (rounds down), % or mod (remainder, sign of the divisor), ! and
    parentheses. -2^2 is -4. Percentages: "15% of 80" is 12, "80 * 15%" is 12, "200 + 10%" is 220 (a
    percentage added to or taken from a number is a share of that number), "50% + 10%" is 0.6.
    Functions: sqrt abs floor ceil min max factorial exp ln log10, round(x) or round(x, places) with
    halves away from zero, log(x) to base 10 or log(x, base), sin cos tan in radians. Constants: pi e.
    Thousands separators as in 1,234.5 are understood, except inside the brackets of a function. The
    answer says "=" if it is exact and "≈" if it was rounded.
    """
    answer = evaluate(expression)
    return f"{expression.strip()} {'=' if answer.exact else '≈'} {answer}"


@dataclass(frozen=True, slots=True)
class Answer:
    value: Decimal
    exact: bool

    def __str__(self) -> str:
        if self.exact:
            return _format(self.value, widest=WORKING_DIGITS)
        return _format(self.value.normalize(Context(prec=SHOWN_DIGITS)), widest=SHOWN_DIGITS)


def evaluate(expression: str) -> Answer:
    """Raises `ToolInputError` with a sentence if there is no answer. It never takes long."""
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ToolInputError(
            f"the expression has {len(expression):,} characters; at most {MAX_EXPRESSION_CHARS} are allowed"
        )
    context = Context(
        prec=WORKING_DIGITS,
        Emax=MAX_EXPONENT,
        Emin=-MAX_EXPONENT,
        traps=[DivisionByZero, InvalidOperation, Overflow, Underflow],
    )
    with localcontext(context) as working:
        value = Parser(expression).parse()
        return Answer(value, exact=not working.flags[Inexact])


def _format(value: Decimal, widest: int) -> str:
    if not value:
        return "0"
    value = value.normalize(Context(prec=WORKING_DIGITS))
    if -widest < value.adjusted() < widest:
        return format(value, "f")
    return str(value).replace("E", "e")
