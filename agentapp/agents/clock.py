"""Tools about time: what time it is somewhere, the same moment elsewhere, and counting days."""

from __future__ import annotations

import calendar
import difflib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from importlib.resources import files
from types import MappingProxyType
from zoneinfo import ZoneInfo, available_timezones

from agentapp.agents.tools import ToolContext, ToolInputError, tool

MAX_STEP = 1_000_000
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
    if max(map(abs, (days, weeks, months, years))) > MAX_STEP:
        raise ToolInputError(f"at most {MAX_STEP:,} of a unit can be added")
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


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    zone: tzinfo


# Names people use that are no last part of an IANA name, by zone. An underscore stands for a space.
_ALSO_CALLED = (
    ("Europe/London", "uk england scotland great_britain edinburgh manchester bst"),
    ("Europe/Berlin", "hamburg munich frankfurt cologne stuttgart cest"),
    ("Europe/Zurich", "geneva basel bern"),
    ("Europe/Rome", "milan naples"),
    ("Europe/Madrid", "barcelona"),
    ("Europe/Moscow", "st_petersburg"),
    ("Europe/Prague", "czechia"),
    ("Asia/Shanghai", "china beijing shenzhen"),
    ("Asia/Tokyo", "osaka kyoto jst"),
    ("Asia/Seoul", "korea south_korea"),
    ("Asia/Kolkata", "delhi new_delhi mumbai bangalore chennai ist"),
    ("Asia/Bangkok", "hanoi"),
    ("Asia/Dubai", "abu_dhabi"),
    ("Asia/Jerusalem", "tel_aviv"),
    ("Africa/Johannesburg", "cape_town"),
    ("Australia/Sydney", "canberra"),
    ("Pacific/Auckland", "wellington new_zealand"),
    ("America/New_York", "washington boston miami atlanta philadelphia eastern et est edt"),
    ("America/Chicago", "houston dallas austin central ct cst cdt"),
    ("America/Denver", "mountain mt mdt"),
    ("America/Los_Angeles", "san_francisco seattle san_diego las_vegas pacific pt pst pdt"),
    ("America/Toronto", "montreal ottawa"),
    ("America/Sao_Paulo", "rio_de_janeiro brasilia"),
)
_ALIASES: Mapping[str, str] = MappingProxyType(
    {name.replace("_", " "): zone for zone, names in _ALSO_CALLED for name in names.split()}
)
_COUNTRIES: Mapping[str, str] = MappingProxyType({"usa": "united states", "america": "united states"})
# Their last parts are no cities: "West", "Pacific", "General".
_STATES = ("US/", "Canada/", "Brazil/", "Chile/", "Mexico/")
_OFFSET = re.compile(r"(?:utc|gmt)?\s*([+-])([0-9]{1,2})(?::?([0-9]{2}))?")


def find_zone(asked: str) -> Place:
    """The zone of a city, country, IANA name or offset, however it is written. Raises with near matches."""
    key = _key(asked)
    if offset := _OFFSET.fullmatch(key.replace("−", "-")):
        return _fixed(asked, offset)
    names = available_timezones() - {"Factory", "localtime"}
    by_city = _by_city(names)
    name = _ALIASES.get(key) or by_city.get(key)
    if name is None and "/" in key:
        name = next((name for name in names if _key(name) == key), None)
    name = name or _of_country(key)
    if name is None:
        raise _unknown(asked, key, by_city)
    return Place(name, ZoneInfo(name))


def _key(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(plain.replace("_", " ").replace(".", "").split())


def _fixed(asked: str, offset: re.Match[str]) -> Place:
    sign, hours, minutes = offset.groups(default="0")
    if int(hours) > 14 or int(minutes) > 59:
        raise ToolInputError(f"{asked!r} is no offset that is in use: they go from -12:00 to +14:00")
    distance = timedelta(hours=int(hours), minutes=int(minutes))
    zone = timezone(distance if sign == "+" else -distance)
    return Place(str(zone), zone)


def _by_city(names: set[str]) -> dict[str, str]:
    """IANA names by their last part. Of several the one in the zone table: the others are old names."""
    official = {name for _, name in _zone_table()}
    # The last one wins, so the best come last.
    ordered = sorted(names, key=lambda name: (name in official, "/" not in name, name))
    return {_key(name.rsplit("/", 1)[-1]): name for name in ordered if not name.startswith(_STATES)}


def _of_country(key: str) -> str | None:
    wanted = _COUNTRIES.get(key, key)
    codes = {code for code, name in _table("iso3166.tab") if wanted in (_key(name), code.casefold())}
    # Zones that keep the same time count once, and nobody who says "Australia" means Macquarie Station.
    distinct: dict[tuple[timedelta | None, ...], str] = {}
    for code, name in _zone_table():
        if code in codes and not name.startswith("Antarctica/"):
            distinct.setdefault(_rhythm(name), name)
    if len(distinct) > 1:
        raise ToolInputError(
            f"{wanted.title()} has several time zones; name one of {', '.join(distinct.values())}"
        )
    return next(iter(distinct.values()), None)


def _rhythm(name: str) -> tuple[timedelta | None, ...]:
    return tuple(datetime(2026, month, 15, tzinfo=ZoneInfo(name)).utcoffset() for month in (1, 7))


def _unknown(asked: str, key: str, by_city: Mapping[str, str]) -> ToolInputError:
    near = difflib.get_close_matches(key, sorted({*by_city, *_ALIASES}), n=4, cutoff=0.6)
    names = dict.fromkeys(_ALIASES.get(word) or by_city[word] for word in near)
    hint = f"did you mean {' or '.join(names)}?" if names else 'use a city or a name like "Europe/Berlin"'
    return ToolInputError(f"no time zone is known for {asked[:80]!r}; {hint}")


def _zone_table() -> list[tuple[str, str]]:
    return _table("zone.tab", column=2)


def _table(file: str, column: int = 1) -> list[tuple[str, str]]:
    lines = (files("tzdata") / "zoneinfo" / file).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [(row[0], row[column]) for row in rows]


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
