"""Sine, cosine, tangent and pi, in the precision of the current decimal context."""

from __future__ import annotations

from decimal import Context, Decimal, getcontext, localcontext

MAX_ANGLE = Decimal("1e100")


def sin(x: Decimal) -> Decimal:
    quarter, rest = _quarters(x)
    wave = _cosine(rest) if quarter % 2 else _sine(rest)
    return -wave if quarter >= 2 else wave


def cos(x: Decimal) -> Decimal:
    quarter, rest = _quarters(x)
    wave = _sine(rest) if quarter % 2 else _cosine(rest)
    return -wave if quarter in (1, 2) else wave


def tan(x: Decimal) -> Decimal:
    cosine = cos(x)
    if not cosine:
        raise ValueError("tan has no value here")
    return sin(x) / cosine


def _quarters(x: Decimal) -> tuple[int, Decimal]:
    """Which quarter of the circle `x` is nearest to, and how far it is from it."""
    if abs(x) > MAX_ANGLE:
        raise ValueError(f"an angle may be at most {MAX_ANGLE}")
    right_angle = pi() / 2
    count = (x / right_angle).to_integral_value()
    rest = x - count * right_angle
    # A rest that small is only the rounding of x: sin(3*pi) must be 0, not 10^-399.
    if count and abs(rest) < abs(x).scaleb(10 - getcontext().prec):
        rest = Decimal(0)
    return int(count % 4) % 4, rest


def _sine(x: Decimal) -> Decimal:
    return _series(x, x, 1)


def _cosine(x: Decimal) -> Decimal:
    return _series(x, Decimal(1), 0)


def _series(x: Decimal, term: Decimal, n: int) -> Decimal:
    total, square = term, x * x
    while term and term.adjusted() > total.adjusted() - getcontext().prec:
        n += 2
        term = -term * square / (n * (n - 1))
        total += term
    return total


def pi() -> Decimal:
    """Machin's formula, with guard digits."""
    with localcontext(Context(prec=getcontext().prec + 10)):
        exact = 4 * (4 * _arctan_of_inverse(5) - _arctan_of_inverse(239))
    return +exact


def _arctan_of_inverse(x: int) -> Decimal:
    power = Decimal(1) / x
    total, n = power, 1
    while power.adjusted() > -getcontext().prec:
        power /= -x * x
        n += 2
        total += power / n
    return total
