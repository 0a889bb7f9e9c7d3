"""Which limits of a user or tenant an admin can change, and how each is written and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agentapp.config import Settings
from agentapp.errors import BadRequest
from agentapp.guardrails.cell import Cell, CellPolicy, Limits
from agentapp.parsing import SECONDS_IN, settings_of

OFF = "off"
AS_SET_BY_THE_SERVER = ""  # what an admin writes to have no change of the limit any longer


@dataclass(frozen=True, slots=True)
class Limit:
    """``name`` is what stored cells and the audit log call it, ``setting`` the field of `Settings` that says
    what it is for whom it was not changed.
    """

    name: str
    words: str
    setting: str

    def parse(self, text: str) -> Any:
        """The value that is written so, by the rules of the setting. None is off."""
        try:
            return settings_of(Settings)[self.setting].parse(text)
        except ValueError as error:
            raise BadRequest(f"{self.words}: {error}; not {text!r}.") from None

    def of_policy(self, policy: CellPolicy) -> Any:
        match self.name:
            case "rate":
                return policy.rate and (policy.rate.count, policy.rate.seconds)
            case "budget":
                return policy.allowance.limit
        return policy.concurrent

    def is_above(self, value: Any, most: Any) -> bool:
        """A rate is higher if it lets more through in the long run, or more at once."""
        if most is None or value is None:
            return most is not None
        if self.name == "rate":
            (count, seconds), (most_count, most_seconds) = value, most
            return bool(count > most_count or count * most_seconds > most_count * seconds)
        return bool(value > most)

    def written(self, value: Any) -> str:
        """As `parse` takes it."""
        if value is None:
            return OFF
        match self.name:
            case "rate":
                return _rate(*value)
            case "budget":
                return _dollars(value)
        return str(value)


LIMITS: Mapping[str, tuple[Limit, ...]] = MappingProxyType(
    {
        "user": (
            Limit("rate", "Messages", "rate_user"),
            Limit("budget", "Dollars a day", "user_day_microusd"),
            Limit("concurrent", "Turns at once", "concurrent_user"),
        ),
        "tenant": (
            Limit("rate", "Messages", "rate_tenant"),
            Limit("budget", "Dollars a month", "tenant_month_microusd"),
            Limit("concurrent", "Turns at once", "concurrent_tenant"),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class LimitInForce:
    """What a limit is for one user or tenant, as it is written; and what it would be without a change."""

    limit: Limit
    value: str
    of_server: str
    is_changed: bool


def limits_in_force(scope: str, policy: CellPolicy, cell: Cell) -> tuple[LimitInForce, ...]:
    """``policy`` is that of the settings."""
    effective, changed = policy.changed_by(cell.limits), dict(cell.limits)
    return tuple(
        LimitInForce(
            limit,
            limit.written(limit.of_policy(effective)),
            limit.written(limit.of_policy(policy)),
            limit.name in changed,
        )
        for limit in LIMITS[scope]
    )


def limit_problems(
    scope: str, before: Limits, wanted: Mapping[str, str], most: Mapping[str, Any]
) -> dict[str, str]:
    """What is wrong with these texts, by the names of limits. Those in ``most`` may not be raised above that;
    one that was above it before may stay.
    """
    problems, had = {}, dict(before)
    for limit in LIMITS[scope]:
        text = wanted.get(limit.name, AS_SET_BY_THE_SERVER).strip()
        if text == AS_SET_BY_THE_SERVER:
            continue
        try:
            value = limit.parse(text)
        except BadRequest as error:
            problems[limit.name] = str(error)
            continue
        is_new = limit.name not in had or had[limit.name] != value
        if is_new and limit.name in most and limit.is_above(value, most[limit.name]):
            problems[limit.name] = (
                f"{limit.words}: at most {limit.written(most[limit.name])}, because your organisation has no"
                " such limit of its own. An operator can set one."
            )
    return problems


def changed_limits(scope: str, before: Limits, wanted: Mapping[str, str]) -> Limits:
    """The changes of a cell after an admin wrote these texts, by the names of limits. What is not named stays
    as it is. Raises `BadRequest`.
    """
    after = dict(before)
    for limit in LIMITS[scope]:
        if limit.name not in wanted:
            continue
        text = wanted[limit.name].strip()
        if text == AS_SET_BY_THE_SERVER:
            after.pop(limit.name, None)
        else:
            after[limit.name] = limit.parse(text)
    return tuple(sorted(after.items()))


def _rate(count: int, seconds: float) -> str:
    unit, length = max((each for each in SECONDS_IN if seconds % each[1] == 0), key=lambda each: each[1])
    times = int(seconds // length)
    return f"{count}/{unit}" if times == 1 else f"{count}/{times}{unit}s"


def _dollars(microusd: int) -> str:
    whole, rest = divmod(microusd, 1_000_000)
    return f"{whole}.{rest:06}".rstrip("0").ljust(len(f"{whole}.") + 2, "0") if rest else str(whole)
