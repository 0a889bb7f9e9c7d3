"""Settings one at a time: how one is declared, and the parsers that turn the text of a variable into a value.

A parser takes the text and returns the value, or raises a `ValueError` that says what the text must be.
`Setting.read` adds the name of the variable to it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentapp.errors import SettingError

T = TypeVar("T")

SECONDS_IN = (("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400))
SHORTEST_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One setting: its variable, its default as text, its parser, and its sentence in docs/reference.md.

    ``default_in_words`` is what the documentation says in place of a default that is not a fixed text.
    The value of a ``secret`` is shown nowhere: not in an error, and not when the settings are printed.
    """

    variable: str
    default: str
    parse: Callable[[str], T]
    sentence: str
    default_in_words: str | None = None
    secret: bool = False

    def is_set(self, environ: Mapping[str, str]) -> bool:
        """A blank variable counts as not set."""
        return bool(environ.get(self.variable, "").strip())

    def read(self, environ: Mapping[str, str], *, default: str | None = None) -> T:
        """The value in these variables, or the default. A bad one is a `SettingError`."""
        fallback = self.default if default is None else default
        text = environ.get(self.variable, "").strip() or fallback
        try:
            return self.parse(text)
        except ValueError as exc:
            raise SettingError(self.variable, f"{exc}" if self.secret else f"{exc}; not {text!r}") from None


def setting(
    variable: str,
    default: str,
    parse: Callable[[str], T],
    sentence: str,
    *,
    default_in_words: str | None = None,
    default_value: T | None = None,
    secret: bool = False,
) -> T:
    """A field of a dataclass. Its default is what the parser makes of the default text, unless there is a
    ``default_value``.
    """
    declared = Setting(variable, default, parse, sentence, default_in_words, secret)
    value = parse(default) if default_value is None else default_value
    return field(default=value, repr=not secret, metadata={"setting": declared})


def required_setting(
    variable: str,
    default: str,
    parse: Callable[[str], T],
    sentence: str,
    *,
    default_in_words: str | None = None,
    secret: bool = False,
) -> T:
    """A field without a default in code, because its default depends on other settings or on the process."""
    declared = Setting(variable, default, parse, sentence, default_in_words, secret)
    made: T = field(repr=not secret, metadata={"setting": declared})
    return made


def same_setting(owner: type, name: str) -> Any:
    """A field that another dataclass declares, with the same default."""
    (declared,) = [each for each in fields(owner) if each.name == name]
    return field(default=declared.default, metadata=declared.metadata)


def settings_of(owner: type) -> dict[str, Setting[Any]]:
    """What is declared in a dataclass, by the names of its fields and in their order."""
    return {each.name: each.metadata["setting"] for each in fields(owner)}


def text(value: str) -> str:
    return value


def text_or_none(value: str) -> str | None:
    return value or None


def directory(value: str) -> Path:
    """Absolute, so that it stays the same when the process changes its working directory."""
    return Path(value).absolute()


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return parse


def flag(value: str) -> bool:
    if value not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return value == "1"


def whole(lowest: int, highest: int) -> Callable[[str], int]:
    """A whole number, in plain digits, from the lowest to the highest."""

    def parse(value: str) -> int:
        if not value.isascii() or not value.isdigit() or not lowest <= int(value) <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}")
        return int(value)

    return parse


def seconds(value: str) -> float:
    return _seconds(value, SHORTEST_SECONDS, 3_600)


def long_seconds(value: str) -> float:
    """Up to a day."""
    return _seconds(value, SHORTEST_SECONDS, 86_400)


def pause(value: str) -> float:
    """Seconds that may also be none at all."""
    return _seconds(value, 0, 10)


def _seconds(value: str, lowest: float, highest: float) -> float:
    number = _number(value)
    if not lowest <= number <= highest:
        raise ValueError(f"must be a number of seconds from {lowest:g} to {highest:g}")
    return number


def share(value: str) -> float:
    number = _number(value)
    if not 0 < number <= 1:
        raise ValueError("must be a number over 0 and up to 1")
    return number


def _number(value: str) -> float:
    """Not a number if it is none: then it is within no limits."""
    try:
        return float(value)
    except ValueError:
        return float("nan")


def rate(value: str) -> tuple[int, float]:
    """``20/minute``, ``10/15minutes``: how many, within how many seconds."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{0,6})(second|minute|hour|day)s?", value)
    count, times, unit = (
        (int(found[1]), int(found[2] or 1), dict(SECONDS_IN)[found[3]]) if found else (0, 0, 0)
    )
    if not count or not times:
        raise ValueError("must look like 20/minute or 10/15minutes, or be off")
    return count, float(times * unit)


def microusd(value: str) -> int:
    """Dollars, as millionths."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", value) or not float(value):
        raise ValueError("must be a number of dollars over 0, such as 5 or 0.50, or be off")
    return round(float(value) * 1_000_000)


def megabytes(value: str) -> int:
    """Megabytes, as bytes."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", value) or not float(value):
        raise ValueError("must be a number of megabytes over 0, such as 200 or 0.5, or be off")
    return round(float(value) * 1_000_000)


def or_off(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """None for ``off``, otherwise what the other parser makes of it."""
    return lambda value: None if value.lower() == "off" else parse(value)


# What a model's name begins with, and dollars per million tokens: in, out and, if they are given, read from
# the provider's cache and written to it.
Price = tuple[str, float, float] | tuple[str, float, float, float, float]


def price_list(value: str) -> tuple[Price, ...]:
    """``claude-sonnet-4=3/15, my-model=0.5/1.5/0.05/0.6``."""
    return tuple(_price(part.strip()) for part in value.split(",") if part.strip())


def _price(part: str) -> Price:
    dollars = r"([0-9]+(?:\.[0-9]+)?)"
    found = re.fullmatch(rf"([^=\s]+)={dollars}/{dollars}(?:/{dollars}/{dollars})?", part)
    if not found:
        raise ValueError("must look like claude-sonnet-4=3/15,other-model=0.5/1.5/0.05/0.6")
    if found[4] is None:
        return found[1], float(found[2]), float(found[3])
    return found[1], float(found[2]), float(found[3]), float(found[4]), float(found[5])


def module_and_name(value: str) -> str:
    """``package.module:name``."""
    module, colon, name = value.partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError("must look like package.module:name")
    return value


def supported_database_url(value: str) -> str:
    if value.startswith("postgresql+psycopg://") or _names_a_sqlite_file(value):
        return value
    raise ValueError("must begin with 'postgresql+psycopg://' or 'sqlite:///' and name a file")


def _names_a_sqlite_file(url: str) -> bool:
    """A database in memory would be a different one in every worker."""
    file = url.removeprefix("sqlite:///")
    return file not in ("", url) and not file.startswith((":memory:", "file:", "?"))


def address(value: str) -> str:
    """Where a server listens: a host and a port, or the path of a Unix socket."""
    if value.startswith("unix:/"):
        return value
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host) != bracketed or any(c.isspace() or c in ",/" for c in host):
        raise ValueError("must look like 127.0.0.1:8000, [::1]:8000 or unix:/run/agentapp.sock")
    try:
        whole(1, 65535)(port)
    except ValueError:
        raise ValueError("must end in a port from 1 to 65535") from None
    return value


def is_loopback(bind: str) -> bool:
    """True for an address only this machine can reach: loopback, or a Unix socket."""
    if bind.startswith("unix:"):
        return True
    host = bind.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


MAX_HOST_CHARS, MAX_LABEL_CHARS = 253, 63  # of a name, and between two dots of it
ADDRESSES = "<addresses>"  # among the names of a server: any IP address. It is no name that a Host can have.


def is_one_of_hosts(host: str, names: Collection[str]) -> bool:
    """Whether a Host header has one of these names."""
    name = host_name(host)
    return name is not None and (name in names or (ADDRESSES in names and _is_address(name)))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_names(value: str) -> tuple[str, ...]:
    """``chat.example.org, 192.0.2.1``: names or addresses, each in the form in which `host_name` gives it."""
    return tuple(_listed_host(part.strip()) for part in value.split(",") if part.strip())


def _listed_host(part: str) -> str:
    try:
        return str(ipaddress.ip_address(part.removeprefix("[").removesuffix("]")))
    except ValueError:
        name = host_name(part)
    if name is None or ":" in part:
        raise ValueError("must be names without scheme and port, such as chat.example.org,192.0.2.1")
    return name


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port and always written the same way; None if it is no name."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]*)?", host)
    if found is None:
        return None
    if found[2]:
        name = found[2].lower().removesuffix(".")
        labels = name.split(".")
        fits = len(name) <= MAX_HOST_CHARS and all(1 <= len(label) <= MAX_LABEL_CHARS for label in labels)
        return name if fits else None
    try:
        return str(ipaddress.IPv6Address(found[1]))
    except ValueError:
        return None
