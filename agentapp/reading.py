"""Reading one variable at a time: what it may be, and what is said when it is something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from agentapp.errors import SettingError

T = TypeVar("T")

UNITS = (("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400))


class Reader:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, variable: str, default: str) -> str:
        return self._environ.get(variable, "").strip() or default

    def choice(self, variable: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(variable, default)
        if value not in allowed:
            raise SettingError(variable, f"must be one of {', '.join(allowed)}; not {value!r}")
        return value

    def parsed(self, variable: str, default: str, parse: Callable[[str], T]) -> T:
        value = self.text(variable, default)
        try:
            return parse(value)
        except ValueError as exc:
            raise SettingError(variable, f"{exc}; not {value!r}") from None


def flag(value: str) -> bool:
    if value not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return value == "1"


def whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.isascii() or not value.isdigit() or not low <= int(value) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return parse


def _number(value: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise ValueError(f"must be a number of seconds from {low:g} to {high:g}")
    return number


def seconds(value: str) -> float:
    return _number(value, 0.1, 3600)


def long_seconds(value: str) -> float:
    return _number(value, 0.1, 86_400)


def pause(value: str) -> float:
    return _number(value, 0, 10)


def share(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not 0 < number <= 1:
        raise ValueError("must be a number over 0 and up to 1")
    return number


def rate(value: str) -> tuple[int, float]:
    """``20/minute``, ``10/15minutes``: how many, within how many seconds."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{0,6})(second|minute|hour|day)s?", value)
    count, times, unit = (int(found[1]), int(found[2] or 1), dict(UNITS)[found[3]]) if found else (0, 0, 0)
    if not count or not times:
        raise ValueError("must look like 20/minute or 10/15minutes, or be off")
    return count, float(times * unit)


def microusd(value: str) -> int:
    """Dollars, as millionths."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", value) or not float(value):
        raise ValueError("must be a number of dollars over 0, such as 5 or 0.50, or be off")
    return round(float(value) * 1_000_000)


def or_off(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    return lambda value: None if value.lower() == "off" else parse(value)


def prices(value: str) -> tuple[tuple[str, float, float], ...]:
    """``claude-sonnet-4=3/15, my-model=0.5/1.5``: dollars per million tokens in and out, by the beginning
    of the model's name.
    """
    return tuple(_price(part.strip()) for part in value.split(",") if part.strip())


def _price(part: str) -> tuple[str, float, float]:
    found = re.fullmatch(r"([^=\s]+)=([0-9]+(?:\.[0-9]+)?)/([0-9]+(?:\.[0-9]+)?)", part)
    if not found:
        raise ValueError("must look like claude-sonnet-4=3/15,other-model=0.5/1.5")
    return found[1], float(found[2]), float(found[3])
