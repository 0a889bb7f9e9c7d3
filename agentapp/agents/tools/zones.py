"""Time zones as people name them: by city, country, IANA name or offset."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from importlib.resources import files
from types import MappingProxyType
from zoneinfo import ZoneInfo, available_timezones

from agentapp.agents.tool import ToolInputError


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    zone: tzinfo


def find_zone(asked: str) -> Place:
    """The zone of a city, country, IANA name or offset, however it is written. Raises with near matches."""
    key = _key(asked)
    if offset := _OFFSET.fullmatch(key.replace("−", "-")):
        return _fixed(asked, offset)
    names = available_timezones() - {"Factory", "localtime"}
    by_city = _by_city(names)
    name = ALIASES.get(key) or by_city.get(key)
    if name is None and "/" in key:
        name = next((name for name in names if _key(name) == key), None)
    name = name or _of_country(key)
    if name is None:
        raise _unknown(asked, key, by_city)
    return Place(name, ZoneInfo(name))


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
ALIASES: Mapping[str, str] = MappingProxyType(
    {name.replace("_", " "): zone for zone, names in _ALSO_CALLED for name in names.split()}
)
_COUNTRIES: Mapping[str, str] = MappingProxyType({"usa": "united states", "america": "united states"})
# The last parts of these names are not cities: "West", "Pacific", "General".
_WITHOUT_CITIES = ("US/", "Canada/", "Brazil/", "Chile/", "Mexico/")
_OFFSET = re.compile(r"(?:utc|gmt)?\s*([+-])([0-9]{1,2})(?::?([0-9]{2}))?")


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
    """IANA names by their last part. Of several, the one in the zone table counts: the others are old."""
    official = {name for _, name in _zone_table()}
    # The last one wins, so the best come last.
    ordered = sorted(names, key=lambda name: (name in official, "/" not in name, name))
    return {_key(name.rsplit("/", 1)[-1]): name for name in ordered if not name.startswith(_WITHOUT_CITIES)}


def _of_country(key: str) -> str | None:
    wanted = _COUNTRIES.get(key, key)
    codes = {code for code, name in _table("iso3166.tab") if wanted in (_key(name), code.casefold())}
    # Zones with the same time count once. Stations in Antarctica do not count as part of their country.
    distinct: dict[tuple[timedelta | None, ...], str] = {}
    for code, name in _zone_table():
        if code in codes and not name.startswith("Antarctica/"):
            distinct.setdefault(_offsets_in_winter_and_summer(name), name)
    if len(distinct) > 1:
        raise ToolInputError(
            f"{wanted.title()} has several time zones; name one of {', '.join(distinct.values())}"
        )
    return next(iter(distinct.values()), None)


def _offsets_in_winter_and_summer(name: str) -> tuple[timedelta | None, ...]:
    return tuple(datetime(2026, month, 15, tzinfo=ZoneInfo(name)).utcoffset() for month in (1, 7))


def _unknown(asked: str, key: str, by_city: Mapping[str, str]) -> ToolInputError:
    near = difflib.get_close_matches(key, sorted({*by_city, *ALIASES}), n=4, cutoff=0.6)
    names = dict.fromkeys(ALIASES.get(word) or by_city[word] for word in near)
    hint = f"did you mean {' or '.join(names)}?" if names else 'use a city or a name like "Europe/Berlin"'
    return ToolInputError(f"no time zone is known for {asked[:80]!r}; {hint}")


def _zone_table() -> list[tuple[str, str]]:
    return _table("zone.tab", column=2)


def _table(file: str, column: int = 1) -> list[tuple[str, str]]:
    lines = (files("tzdata") / "zoneinfo" / file).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [(row[0], row[column]) for row in rows]
