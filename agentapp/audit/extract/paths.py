"""The texts that facts are made of: how paths grow, and how many are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agentapp.audit.facts import STEP, joined

Paths = tuple[str, ...]  # where one object may come from
FRESH: Final[Paths] = ()  # from nowhere: it is new, and nobody else has it
OWN_MODULE: Final[Paths] = ("g:",)
MOST_PATHS, MOST_STEPS = 4, 7


def stepped(paths: Paths, *steps: str) -> Paths:
    """One that is too long already is left out."""
    if not paths:
        return FRESH
    if len(paths) == 1 == len(steps):
        return (f"{paths[0]}|{steps[0]}",) if paths[0].count(STEP) < MOST_STEPS else FRESH
    return tuple(joined(path, *steps) for path in paths if path.count(STEP) < MOST_STEPS)


def short(paths: Iterable[str]) -> Paths:
    return tuple(dict.fromkeys(paths))[:MOST_PATHS]


def element(path: str) -> str:
    """What is in a copy is what is in the original; what is in a new container is what was put there."""
    base, _, last = path.rpartition(STEP)
    if last == "~" and base:
        return element(base)
    if last[0] == "^":
        return base
    return path if last == "[]" else joined(path, "[]")


def item(path: str, index: object) -> Paths:
    """The same for one item: of what was put into several places only what is at that one."""
    last = path.rpartition(STEP)[2]
    return (element(path),) if last[0] != "^" or last in ("^", f"^{index}") else FRESH


def contained(parts: Iterable[Paths], *, in_places: bool = False) -> Paths:
    """A new container with these in it. Of a tuple, or if nothing is known of some, their places matter."""
    found = list(parts)
    in_places = in_places or not all(found)
    return short(
        joined(path, f"^{n}" if in_places else "^") for n, paths in enumerate(found) for path in paths
    )


def paired(path: str, place: int) -> str:
    """A new container of tuples that have in this place what is in that."""
    return joined(element(path), f"^{place}", "^")


def elements(paths: Paths) -> Paths:
    return tuple(map(element, paths))


def copies(paths: Iterable[str]) -> list[str]:
    return [joined(path, "~") for path in paths]


def classes(paths: Paths) -> Paths:
    """The classes of these objects: that of a method's own object has a root of its own."""
    return tuple("c" if path == "s" else joined(path, ".__class__") for path in paths)


def merged(envs: list[dict[str, Paths]]) -> dict[str, Paths]:
    """A variable may be what it is in any of them."""
    found = dict(envs[0])
    for env in envs[1:]:
        for name, paths in env.items():
            if found.get(name) != paths:
                found[name] = short([*found.get(name, FRESH), *paths])
    return found


def is_about(asked: str, path: str) -> bool:
    """Whether it was asked for that object, or whether something was in it."""
    return path == asked or asked.startswith(path + STEP) or path.startswith(asked + STEP)
