"""Tools about time: what time it is somewhere, the same moment elsewhere, and counting days."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, date, datetime, time, timedelta, timezone

from agentapp.agents.tool import ToolContext, ToolInputError, tool
from agentapp.agents.tools.zones import Place, find_zone

MAX_ADDED_UNITS = 1_000_000
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@tool
def current_time(context: ToolContext, zone: str = "UTC") -> str:
    """Tell the date and time now in a zone: a city ("Tokyo"), a country with one time zone ("Japan"),
    an IANA name ("America/New_York") or an offset ("UTC+05:30").
    """
    place = find_zone(zone)
    return f"It is {_moment(context.now().astimezone(place.zone))} in {place.name}."


@tool
def convert_time(context: ToolContext, when: str, from_zone: str, to_zone: str) -> str:
    """Tell what a time in one zone is in another. `when` is "2026-03-01 14:30", or "14:30" or "3pm" for
    today in `from_zone`, or "now". Zones are cities, countries, IANA names or offsets. Clock changes that
    make a time doubtful are told.
    """
    source, target = find_zone(from_zone), find_zone(to_zone)
    now = context.now().astimezone(source.zone)
    try:
        if when.strip().casefold() == "now":
            return _same(now, source, target)
        return _converted(_wall_time(when, now), source, target)
    except OverflowError as exc:
        raise ToolInputError(f"{when!r} is too far away to convert") from exc


@tool
def days_between(context: ToolContext, start: str, end: str) -> str:
    """Count the days from one date to another. Dates are "2026-03-01", or today, tomorrow (UTC)."""
    first, last = _date(start, context), _date(end, context)
    days = (last - first).days
    if not days:
        return f"Both are {_day(first)}: 0 days."
    weeks, rest = divmod(abs(days), 7)
    split = f" ({_count(weeks, 'week')} and {_count(rest, 'day')})" if weeks else ""
    direction = "" if days > 0 else " back"
    return f"From {_day(first)} to {_day(last)} it is {_count(abs(days), 'day')}{direction}{split}."


@tool
def add_to_date(
    context: ToolContext, start: str, days: int = 0, weeks: int = 0, months: int = 0, years: int = 0
) -> str:
    """Tell the date that lies some days, weeks, months or years after a date (before it if negative).

    Dates are "2026-03-01", or today, tomorrow, yesterday (UTC). Months and years are added first; a day
    that the month does not have becomes its last day.
    """
    if max(map(abs, (days, weeks, months, years))) > MAX_ADDED_UNITS:
        raise ToolInputError(f"at most {MAX_ADDED_UNITS:,} of a unit can be added")
    first = _date(start, context)
    try:
        moved = _plus_months(first, months + 12 * years)
        result = moved + timedelta(days=days, weeks=weeks)
    except (OverflowError, ValueError) as exc:
        raise ToolInputError("the result lies outside the years 1 to 9999") from exc
    shortened = (
        "" if moved.day == first.day else f" (that month has no day {first.day}, so its last day is taken)"
    )
    return f"{_steps(days, weeks, months, years)} {_day(first)} is {_day(result)}{shortened}."


_CLOCK = re.compile(r"([0-9]{1,2})(?::([0-9]{2}))?(?::([0-9]{2}))?\s*(am|pm)?")


def _wall_time(when: str, now: datetime) -> datetime:
    text = when.strip().casefold()
    text = {"noon": "12:00", "midnight": "00:00"}.get(text, text)
    try:
        return _naive(datetime.fromisoformat(text.upper()), when) if "-" in text else _today_at(text, now)
    except ValueError as exc:
        raise ToolInputError(f'{when[:80]!r} is no time; write "2026-03-01 14:30", "14:30" or "3pm"') from exc


def _naive(moment: datetime, when: str) -> datetime:
    if moment.tzinfo is not None:
        raise ToolInputError(f"leave the offset out of {when!r}: from_zone says it")
    return moment.replace(microsecond=0)


def _today_at(text: str, now: datetime) -> datetime:
    found = _CLOCK.fullmatch(text)
    if not found or not (found[2] or found[4]):
        raise ValueError(text)
    hour, minute, second = int(found[1]), int(found[2] or 0), int(found[3] or 0)
    if found[4]:
        if not 1 <= hour <= 12:
            raise ValueError(text)
        hour = hour % 12 + 12 * (found[4] == "pm")
    return datetime.combine(now.date(), time(hour, minute, second))


def _converted(wall: datetime, source: Place, target: Place) -> str:
    before, after = (wall.replace(tzinfo=source.zone, fold=fold) for fold in (0, 1))
    if before.utcoffset() == after.utcoffset():
        return _same(before, source, target)
    if _exists(before):
        return (
            f"{_plain(wall)} happens twice in {source.name}, because the clocks are put back. "
            f"The first time is {_moment(before.astimezone(target.zone))} in {target.name}, "
            f"the second {_moment(after.astimezone(target.zone))}."
        )
    moved = before.astimezone(UTC).astimezone(source.zone)
    return (
        f"{_plain(wall)} does not exist in {source.name}, because the clocks are put forward over it. "
        f"Taken as {_moment(moved)} there, it is {_moment(moved.astimezone(target.zone))} in {target.name}."
    )


def _same(moment: datetime, source: Place, target: Place) -> str:
    elsewhere = moment.astimezone(target.zone)
    return f"{_moment(moment)} in {source.name} is {_moment(elsewhere)} in {target.name}."


def _exists(moment: datetime) -> bool:
    back = moment.astimezone(UTC).astimezone(moment.tzinfo)
    return back.replace(tzinfo=None) == moment.replace(tzinfo=None)


def _date(text: str, context: ToolContext) -> date:
    today = context.now().astimezone(UTC).date()
    relative = {"today": 0, "now": 0, "tomorrow": 1, "yesterday": -1}
    word = text.strip().casefold()
    if word in relative:
        return today + timedelta(days=relative[word])
    try:
        return date.fromisoformat(word)
    except ValueError as exc:
        raise ToolInputError(f'{text[:80]!r} is no date; write it like "2026-03-01", or "today"') from exc


def _plus_months(day: date, months: int) -> date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise OverflowError(year)
    return day.replace(year=year, month=month + 1, day=min(day.day, calendar.monthrange(year, month + 1)[1]))


def _steps(days: int, weeks: int, months: int, years: int) -> str:
    units = [
        (n, unit) for n, unit in ((years, "year"), (months, "month"), (weeks, "week"), (days, "day")) if n
    ]
    if units and all(n < 0 for n, _ in units):
        return ", ".join(_count(-n, unit) for n, unit in units) + " before"
    return (", ".join(_count(n, unit) for n, unit in units) or "0 days") + " after"


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if abs(number) == 1 else 's'}"


def _day(day: date) -> str:
    # Not strftime: its names follow the machine's locale, and it drops leading zeros of early years.
    return f"{WEEKDAYS[day.weekday()]} {day.isoformat()}"


def _plain(moment: datetime) -> str:
    seconds = moment.second != 0
    return f"{_day(moment.date())} {moment.time().isoformat('seconds' if seconds else 'minutes')}"


def _moment(moment: datetime) -> str:
    offset = str(timezone(moment.utcoffset() or timedelta()))
    return f"{_plain(moment)} ({offset if offset != 'UTC' else 'UTC+00:00'})"
