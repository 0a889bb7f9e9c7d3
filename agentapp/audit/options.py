"""The table ``[tool.agentapp.audit]`` of a pyproject.toml: paths, excluded files, rules and severities."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from agentapp.audit.findings import Unusable
from agentapp.audit.rules import RULES, Severity

TABLE = "[tool.agentapp.audit]"
KEYS = ("paths", "exclude", "rules", "ignore", "severity")
SEVERITIES = ("error", "warning", "note", "off")
UNREADABLE = "ISO099"


@dataclass(frozen=True, slots=True)
class Options:
    paths: tuple[str, ...] = ()
    exclude: Exclude | None = None
    rules: frozenset[str] = frozenset(RULES)
    severities: Mapping[str, str] = field(default_factory=dict)

    def severity_of(self, rule: str) -> Severity | None:
        """None if the rule is off. A file that cannot be read is always reported."""
        said = self.severities.get(rule, RULES[rule].severity)
        if said == "off" or (rule not in self.rules and rule != UNREADABLE):
            return None
        return cast(Severity, said)

    def is_excluded(self, where: str) -> bool:
        return self.exclude is not None and self.exclude.covers(where)


@dataclass(frozen=True, slots=True)
class Exclude:
    """Path patterns, relative to the directory of the pyproject.toml.

    A pattern without a slash matches a file or directory of that name anywhere. In other patterns ``*``
    matches within one directory and ``**`` matches any number of directories. If a directory matches,
    everything below it is excluded.
    """

    above: str
    patterns: tuple[tuple[str, ...], ...]

    def covers(self, where: str) -> bool:
        path = tuple(where.removeprefix(os.path.join(self.above, "")).split(os.sep))
        return any(_matches(path, pattern) for pattern in self.patterns)


def load(first: str | None) -> Options:
    """Read the nearest pyproject.toml above ``first``, or else above the current directory.

    Raises `Unusable`.
    """
    file = (nearest(Path(os.path.abspath(first))) if first else None) or nearest(Path.cwd())
    if file is None:
        return Options()
    try:
        table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise Unusable(f"{file} cannot be read: {exc.strerror}") from None
    except (ValueError, RecursionError) as exc:
        raise Unusable(f"{file} is not TOML: {exc}") from None
    for key in ("tool", "agentapp", "audit"):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise Unusable(f"{file}: {key}: must be a table")
    return _Table(file, table).options()


def nearest(path: Path) -> Path | None:
    return next(
        (file for above in (path, *path.parents) if (file := above / "pyproject.toml").is_file()), None
    )


class _Table:
    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        self.file, self.values = file, values

    def options(self) -> Options:
        for key in self.values:
            if key not in KEYS:
                raise self._unusable(key, f"is not known; there are {', '.join(KEYS)}")
        above = self.file.parent
        rules = frozenset(self._codes("rules") if "rules" in self.values else RULES)
        return Options(
            tuple(str(above / path) for path in self._texts("paths")),
            self._exclude(str(above)),
            rules - frozenset(self._codes("ignore")),
            self._severities(),
        )

    def _texts(self, key: str) -> list[str]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise self._unusable(key, "must be a list of texts")
        return value

    def _codes(self, key: str) -> list[str]:
        codes = self._texts(key)
        for code in codes:
            self._check(key, code)
        if key == "ignore" and UNREADABLE in codes:
            raise self._unusable(key, f"{UNREADABLE} cannot be turned off; exclude the file instead")
        return codes

    def _exclude(self, above: str) -> Exclude:
        patterns = [each.removeprefix("./").rstrip("/") for each in self._texts("exclude")]
        return Exclude(
            above, tuple(tuple(each.split("/")) if "/" in each else ("**", each) for each in patterns)
        )

    def _severities(self) -> Mapping[str, str]:
        value = self.values.get("severity", {})
        if not isinstance(value, dict):
            raise self._unusable("severity", "must be a table of rules")
        for code, said in value.items():
            self._check("severity", code)
            if said not in SEVERITIES:
                raise self._unusable(
                    f"severity.{code}", f"must be one of {', '.join(SEVERITIES)}; not {said!r}"
                )
            if said == "off" and code == UNREADABLE:
                raise self._unusable(f"severity.{code}", "cannot be turned off; exclude the file instead")
        return MappingProxyType(dict(value))

    def _check(self, key: str, code: str) -> None:
        if code not in RULES:
            raise self._unusable(key, f"there is no rule {code!r}")

    def _unusable(self, key: str, problem: str) -> Unusable:
        return Unusable(f"{self.file}: {TABLE} {key}: {problem}")


def _matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not path or not pattern:
        return not path and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _matches(path, pattern[1:]) or _matches(path[1:], pattern)
    return fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])
