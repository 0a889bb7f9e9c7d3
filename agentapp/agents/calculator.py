"""The `calculate` tool: arithmetic in decimals by a parser of its own, which can run nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
    Underflow,
    localcontext,
)
from types import MappingProxyType

from agentapp.agents.tools import ToolInputError, tool

MAX_CHARS = 500
MAX_DEPTH = 40
MAX_FACTORIAL = 1000
DIGITS = 400
MAX_EXPONENT = 9999
MAX_ANGLE = Decimal("1e100")
# What is left after rounding is shown with this many digits; working with far more hides the rounding.
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
            return _written(self.value, widest=DIGITS)
        return _written(self.value.normalize(Context(prec=SHOWN_DIGITS)), widest=SHOWN_DIGITS)


def evaluate(expression: str) -> Answer:
    """Raises `ToolInputError` with a sentence for everything that has no answer, and always soon."""
    if len(expression) > MAX_CHARS:
        raise ToolInputError(
            f"the expression has {len(expression):,} characters; at most {MAX_CHARS} are allowed"
        )
    context = Context(
        prec=DIGITS,
        Emax=MAX_EXPONENT,
        Emin=-MAX_EXPONENT,
        traps=[DivisionByZero, InvalidOperation, Overflow, Underflow],
    )
    with localcontext(context) as working:
        value = _Parser(expression).parse()
        return Answer(value, exact=not working.flags[Inexact])


def _written(value: Decimal, widest: int) -> str:
    if not value:
        return "0"
    value = value.normalize(Context(prec=DIGITS))
    if -widest < value.adjusted() < widest:
        return format(value, "f")
    return str(value).replace("E", "e")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # "number", "name", "end", or the operator itself
    text: str
    position: int


_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<operator>\*\*|//|[-+*/%^!(),×÷·−])"
)
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9.,])")
_SAME_AS: Mapping[str, str] = MappingProxyType({"**": "^", "×": "*", "·": "*", "÷": "/", "−": "-"})


def _tokens(source: str) -> tuple[_Token, ...]:
    tokens: list[_Token] = []
    calls: list[bool] = []  # for each open bracket: is it a function's, where a comma separates arguments?
    at = 0
    while at < len(source):
        if source[at].isspace():
            at += 1
            continue
        grouped = None if calls and calls[-1] else _GROUPED.match(source, at)
        found = grouped or _TOKEN.match(source, at)
        if found is None:
            raise _problem(f"{source[at]!r} is not understood", at)
        text = found.group()
        kind = "number" if grouped else found.lastgroup or ""
        if kind == "operator":
            kind = _SAME_AS.get(text, text)
        if kind == "(":
            calls.append(bool(tokens) and tokens[-1].kind == "name" and tokens[-1].text.lower() in _FUNCTIONS)
        elif kind == ")" and calls:
            calls.pop()
        elif kind == "," and not (calls and calls[-1]):
            raise _problem(
                "the comma fits neither 1,234.5 nor a function's arguments (the decimal sign is a point)", at
            )
        tokens.append(_Token(kind, text.replace(",", "") if grouped else text, at))
        at = found.end()
    return (*tokens, _Token("end", "", len(source)))


def _problem(what: str, at: int) -> ToolInputError:
    return ToolInputError(f"{what} at position {at + 1}")


@dataclass(frozen=True, slots=True)
class _Value:
    """`percent` marks a bare percentage: what "200 + 10%" adds is a share of the 200."""

    number: Decimal
    percent: bool = False


_BINDING: Mapping[str, int] = MappingProxyType(
    {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "mod": 2, "^": 4}
)
_UNARY_BINDING = 3


class _Parser:
    """Precedence climbing that computes as it goes. It lives for one expression."""

    def __init__(self, source: str) -> None:
        self._tokens = _tokens(source)
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
        if self._depth > MAX_DEPTH:
            raise _problem(f"the expression is nested more than {MAX_DEPTH} deep", self._peek().position)
        left = self._operand()
        while (operator := self._operator()) and _BINDING[operator] > weakest:
            position = self._take().position
            # One less for "^" makes it group to the right: 2^3^2 is 2^9.
            right = self._expression(_BINDING[operator] - (operator == "^"))
            left = _Value(_computed(position, _combine, operator, left, right))
        self._depth -= 1
        return left

    def _operator(self) -> str:
        token = self._peek()
        kind = token.text.lower() if token.kind == "name" else token.kind
        return kind if kind in _BINDING else ""

    def _operand(self) -> _Value:
        token = self._take()
        if token.kind in ("+", "-"):
            value = self._expression(_UNARY_BINDING)
            return value if token.kind == "+" else _Value(-value.number, value.percent)
        return self._suffixed(self._primary(token))

    def _primary(self, token: _Token) -> Decimal:
        if token.kind == "number":
            return _computed(token.position, _literal, token.text)
        if token.kind == "(":
            value = self._expression(0).number
            self._expect(")", "a closing bracket")
            return value
        if token.kind == "name":
            return self._named(token)
        self._next -= 1
        raise self._unexpected("a number")

    def _named(self, token: _Token) -> Decimal:
        name = token.text.lower()
        if name in _CONSTANTS:
            return _CONSTANTS[name]()
        function = _FUNCTIONS.get(name)
        if function is None:
            known = " ".join([*_FUNCTIONS, *_CONSTANTS])
            raise _problem(f"{token.text!r} is not known (known are {known})", token.position)
        self._expect("(", f"a bracket after {token.text}")
        arguments = [self._expression(0).number]
        while self._peek().kind == ",":
            self._take()
            arguments.append(self._expression(0).number)
        self._expect(")", "a closing bracket")
        if not function.least <= len(arguments) <= function.most:
            raise _problem(
                f"{name} does not take {len(arguments)} arguments (a comma separates them)", token.position
            )
        return _computed(token.position, function.compute, *arguments)

    def _suffixed(self, number: Decimal) -> _Value:
        percent = False
        while True:
            token = self._peek()
            if token.kind == "!":
                number, percent = _computed(self._take().position, _factorial, number), False
            elif token.kind == "%" and not self._starts_operand(self._tokens[self._next + 1]):
                number, percent = _computed(self._take().position, _hundredth, number), True
                if self._peek().text.lower() == "of":
                    position = self._take().position
                    whole = self._expression(_UNARY_BINDING)
                    return _Value(_computed(position, _combine, "*", _Value(number), whole))
            else:
                return _Value(number, percent)

    def _starts_operand(self, token: _Token) -> bool:
        # "10 % 3" is a remainder. A sign does not count: "10% - 3" takes 3 from a tenth.
        return token.kind in ("number", "(") or (
            token.kind == "name" and token.text.lower() not in ("of", "mod")
        )

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _expect(self, kind: str, meaning: str) -> None:
        if self._peek().kind != kind:
            raise self._unexpected(meaning)
        self._next += 1

    def _unexpected(self, wanted: str) -> ToolInputError:
        token = self._peek()
        found = "the end" if token.kind == "end" else repr(token.text)
        return _problem(f"expected {wanted} but found {found}", token.position)


def _computed(position: int, compute: Callable[..., Decimal], *arguments: object) -> Decimal:
    """Every step goes through here, so that whatever decimals cannot do is told with its place."""
    try:
        return compute(*arguments)
    except DivisionByZero as exc:
        raise _problem("division by zero", position) from exc
    except Overflow as exc:
        raise _problem(f"the result is too large (over 10^{MAX_EXPONENT})", position) from exc
    except Underflow as exc:
        raise _problem(f"the result is too close to zero (under 10^-{MAX_EXPONENT})", position) from exc
    except DecimalException as exc:
        raise _problem("this has no real result that can be written down", position) from exc
    except ValueError as exc:
        raise _problem(str(exc), position) from exc


def _literal(text: str) -> Decimal:
    return +Decimal(text)


def _hundredth(number: Decimal) -> Decimal:
    return number / 100


def _combine(operator: str, left: _Value, right: _Value) -> Decimal:
    a, b = left.number, right.number
    match operator:
        case "+" | "-":
            share = a * b if right.percent and not left.percent else b
            return a + share if operator == "+" else a - share
        case "*":
            return a * b
        case "/":
            return _over(a, b)
        case "//":
            return _floor_division(a, b)[0]
        case "^":
            return _power(a, b)
        case _:
            return _floor_division(a, b)[1]


def _over(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        raise DivisionByZero  # decimals call 0/0 an invalid operation; to people it is the same mistake
    return a / b


def _floor_division(a: Decimal, b: Decimal) -> tuple[Decimal, Decimal]:
    if not b:
        raise DivisionByZero
    quotient, remainder = divmod(a, b)
    if remainder and (remainder < 0) != (b < 0):
        return quotient - 1, remainder + b
    return quotient, remainder


def _power(a: Decimal, b: Decimal) -> Decimal:
    if not a and b < 0:
        raise DivisionByZero
    if not a and not b:
        return Decimal(1)
    # Bounded by itself: decimals see from the exponent's size that 9^9^9 passes their largest number.
    return a**b


def _factorial(x: Decimal) -> Decimal:
    if x != x.to_integral_value() or not 0 <= x <= MAX_FACTORIAL:
        raise ValueError(f"factorial takes whole numbers from 0 to {MAX_FACTORIAL}")
    return +Decimal(math.factorial(int(x)))


def _round(x: Decimal, places: Decimal = Decimal(0)) -> Decimal:
    if places != places.to_integral_value() or abs(places) > DIGITS:
        raise ValueError(f"round takes whole places from -{DIGITS} to {DIGITS}")
    exponent = x.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= -int(places):
        return x
    # A context of its own: this rounding was asked for and must not turn the answer's "=" into "≈".
    return x.quantize(Decimal(1).scaleb(-int(places)), rounding=ROUND_HALF_UP, context=Context(prec=DIGITS))


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
    return _over(_positive(x).ln(), _positive(base).ln())


def _positive(x: Decimal) -> Decimal:
    if x <= 0:
        raise ValueError("a logarithm takes numbers above zero")
    return x


def _sin(x: Decimal) -> Decimal:
    quarter, rest = _quarters(x)
    wave = _cosine(rest) if quarter % 2 else _sine(rest)
    return -wave if quarter >= 2 else wave


def _cos(x: Decimal) -> Decimal:
    quarter, rest = _quarters(x)
    wave = _sine(rest) if quarter % 2 else _cosine(rest)
    return -wave if quarter in (1, 2) else wave


def _tan(x: Decimal) -> Decimal:
    cosine = _cos(x)
    if not cosine:
        raise ValueError("tan has no value here")
    return _sin(x) / cosine


def _quarters(x: Decimal) -> tuple[int, Decimal]:
    """Which quarter of the circle `x` is nearest to, and how far it is from it."""
    if abs(x) > MAX_ANGLE:
        raise ValueError(f"an angle may be at most {MAX_ANGLE}")
    right_angle = _pi() / 2
    count = (x / right_angle).to_integral_value()
    rest = x - count * right_angle
    # That little is only the rounding of x: sin(3*pi) is to be 0, not 10^-399.
    if count and abs(rest) < abs(x).scaleb(10 - DIGITS):
        rest = Decimal(0)
    return int(count % 4) % 4, rest


def _sine(x: Decimal) -> Decimal:
    return _series(x, x, 1)


def _cosine(x: Decimal) -> Decimal:
    return _series(x, Decimal(1), 0)


def _series(x: Decimal, term: Decimal, n: int) -> Decimal:
    total, square = term, x * x
    while term and term.adjusted() > total.adjusted() - DIGITS:
        n += 2
        term = -term * square / (n * (n - 1))
        total += term
    return total


def _pi() -> Decimal:
    """Machin's formula, with guard digits."""
    with localcontext(Context(prec=DIGITS + 10)):
        exact = 4 * (4 * _arctan_of_inverse(5) - _arctan_of_inverse(239))
    return +exact


def _arctan_of_inverse(x: int) -> Decimal:
    power = Decimal(1) / x
    total, n = power, 1
    while power.adjusted() > -DIGITS - 10:
        power /= -x * x
        n += 2
        total += power / n
    return total


@dataclass(frozen=True, slots=True)
class _Function:
    compute: Callable[..., Decimal]
    least: int = 1
    most: int = 1


_FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        "sqrt": _Function(_sqrt),
        "abs": _Function(abs),
        "round": _Function(_round, most=2),
        "floor": _Function(_floor),
        "ceil": _Function(_ceil),
        "min": _Function(_least, most=MAX_CHARS),
        "max": _Function(_greatest, most=MAX_CHARS),
        "factorial": _Function(_factorial),
        "exp": _Function(Decimal.exp),
        "ln": _Function(_ln),
        "log": _Function(_log, most=2),
        "log10": _Function(_log),
        "sin": _Function(_sin),
        "cos": _Function(_cos),
        "tan": _Function(_tan),
    }
)
_CONSTANTS: Mapping[str, Callable[[], Decimal]] = MappingProxyType({"pi": _pi, "e": Decimal(1).exp})
