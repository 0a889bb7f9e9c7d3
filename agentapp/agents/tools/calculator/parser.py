"""The parser of the calculator: precedence climbing that computes as it goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, DecimalException, DivisionByZero, Overflow, Underflow
from types import MappingProxyType

from agentapp.agents.tool import ToolInputError
from agentapp.agents.tools.calculator.functions import (
    CONSTANTS,
    FUNCTIONS,
    MAX_EXPONENT,
    divide,
    factorial,
    floor_divide,
    power,
)
from agentapp.agents.tools.calculator.tokens import Token, problem, tokens_of

MAX_NESTING = 40

_BINDING: Mapping[str, int] = MappingProxyType(
    {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "mod": 2, "^": 4}
)
_UNARY_BINDING = 3


@dataclass(frozen=True, slots=True)
class _Value:
    """`percent` marks a bare percentage: what "200 + 10%" adds is a share of the 200."""

    number: Decimal
    percent: bool = False


class Parser:
    """Parses one expression, in the current decimal context."""

    def __init__(self, source: str) -> None:
        self._tokens = tokens_of(source)
        self._next = 0
        self._depth = 0

    def parse(self) -> Decimal:
        if self._peek().kind == "end":
            raise ToolInputError("the expression is empty")
        value = self._expression(0)
        if self._peek().kind != "end":
            raise self._unexpected("an operator")
        return value.number

    def _expression(self, weakest: int) -> _Value:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise problem(f"the expression is nested more than {MAX_NESTING} deep", self._peek().position)
        left = self._operand()
        while (operator := self._operator()) and _BINDING[operator] > weakest:
            position = self._take().position
            # One less for "^" makes it group to the right: 2^3^2 is 2^9.
            right = self._expression(_BINDING[operator] - (operator == "^"))
            with _at_position(position):
                left = _Value(_combine(operator, left, right))
        self._depth -= 1
        return left

    def _operator(self) -> str:
        token = self._peek()
        operator = token.name or token.kind
        return operator if operator in _BINDING else ""

    def _operand(self) -> _Value:
        token = self._peek()
        if token.kind in ("+", "-"):
            self._take()
            value = self._expression(_UNARY_BINDING)
            return value if token.kind == "+" else _Value(-value.number, value.percent)
        return self._suffixed(self._primary())

    def _primary(self) -> Decimal:
        token = self._peek()
        if token.kind not in ("number", "name", "("):
            raise self._unexpected("a number")
        self._take()
        if token.kind == "name":
            return self._named(token)
        if token.kind == "(":
            value = self._expression(0).number
            self._expect(")", "a closing bracket")
            return value
        with _at_position(token.position):
            return +Decimal(token.text)

    def _named(self, token: Token) -> Decimal:
        if token.name in CONSTANTS:
            return CONSTANTS[token.name]()
        function = FUNCTIONS.get(token.name)
        if function is None:
            known = " ".join([*FUNCTIONS, *CONSTANTS])
            raise problem(f"{token.text!r} is not known (known are {known})", token.position)
        self._expect("(", f"a bracket after {token.text}")
        arguments = [self._expression(0).number]
        while self._peek().kind == ",":
            self._take()
            arguments.append(self._expression(0).number)
        self._expect(")", "a closing bracket")
        if len(arguments) > function.most:
            raise problem(
                f"{token.name} does not take {len(arguments)} arguments (a comma separates them)",
                token.position,
            )
        with _at_position(token.position):
            return function.compute(*arguments)

    def _suffixed(self, number: Decimal) -> _Value:
        percent = False
        while self._peek().kind == "!" or self._at_percent_sign():
            token = self._take()
            percent = token.kind == "%"
            with _at_position(token.position):
                number = number / 100 if percent else factorial(number)
            if percent and self._peek().name == "of":
                return self._share(number)
        return _Value(number, percent)

    def _at_percent_sign(self) -> bool:
        if self._peek().kind != "%":
            return False
        # "10 % 3" is a remainder. A sign does not count: "10% - 3" takes 3 from a tenth.
        after = self._tokens[self._next + 1]
        return after.kind not in ("number", "name", "(") or after.name in ("of", "mod")

    def _share(self, part: Decimal) -> _Value:
        position = self._take().position
        whole = self._expression(_UNARY_BINDING).number
        with _at_position(position):
            return _Value(part * whole)

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _expect(self, kind: str, meaning: str) -> None:
        if self._peek().kind != kind:
            raise self._unexpected(meaning)
        self._take()

    def _unexpected(self, wanted: str) -> ToolInputError:
        token = self._peek()
        found = "the end" if token.kind == "end" else repr(token.text)
        return problem(f"expected {wanted} but found {found}", token.position)


def _combine(operator: str, left: _Value, right: _Value) -> Decimal:
    a, b = left.number, right.number
    match operator:
        case "+" | "-":
            share = a * b if right.percent and not left.percent else b
            return a + share if operator == "+" else a - share
        case "*":
            return a * b
        case "/":
            return divide(a, b)
        case "//":
            return floor_divide(a, b)[0]
        case "^":
            return power(a, b)
        case _:
            return floor_divide(a, b)[1]


@contextmanager
def _at_position(position: int) -> Iterator[None]:
    """Every step is computed in here, so that an error of the decimals is reported with its position."""
    try:
        yield
    except DivisionByZero as exc:
        raise problem("division by zero", position) from exc
    except Overflow as exc:
        raise problem(f"the result is too large (over 10^{MAX_EXPONENT})", position) from exc
    except Underflow as exc:
        raise problem(f"the result is too close to zero (under 10^-{MAX_EXPONENT})", position) from exc
    except DecimalException as exc:
        raise problem("this has no real result that can be written down", position) from exc
    except ValueError as exc:
        raise problem(str(exc), position) from exc
