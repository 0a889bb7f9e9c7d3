"""A hazard: the rule, the place and the message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, order=True)
class Hazard:
    path: str
    line: int
    rule: str
    message: str
    function: str = ""
    what: str = ""  # the object, as it is named in messages


def group(hazards: Iterable[Hazard]) -> list[Hazard]:
    """Merge the hazards of one function and one rule into one, which names the other objects too."""
    groups: dict[tuple[str, str, str], list[Hazard]] = defaultdict(list)
    for hazard in sorted(hazards):
        groups[hazard.path, hazard.rule, hazard.function or hazard.message].append(hazard)
    found = []
    for first, *others in groups.values():
        names = list(dict.fromkeys(other.what for other in others if other.what and other.what != first.what))
        more = f"; the same goes for {', '.join(names[:3])}" if names else ""
        more += f" and {len(names) - 3} more" if len(names) > 3 else ""
        found.append(replace(first, message=first.message + more))
    return sorted(found)
