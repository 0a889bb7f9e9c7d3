"""The texts that facts are made of: how paths grow, and how many are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agentapp.audit.facts import STEP, join_path

Paths = tuple[str, ...]  # where one object may come from
FRESH: Final[Paths] = ()  # from nowhere: it is new, and nobody else has it
OWN_MODULE: Final[Paths] = ("g:",)
MAX_PATHS, MAX_STEPS = 4, 7


def add_steps(paths: Paths, *steps: str) -> Paths:
    """One that is too long already is left out."""
    if not paths:
        return FRESH
    if len(paths) == 1 == len(steps):
        return (f"{paths[0]}|{steps[0]}",) if paths[0].count(STEP) < MAX_STEPS else FRESH
    return tuple(join_path(path, *steps) for path in paths if path.count(STEP) < MAX_STEPS)


def limit_paths(paths: Iterable[str]) -> Paths:
    return tuple(dict.fromkeys(paths))[:MAX_PATHS]


def element_path(path: str) -> str:
    """What is in a copy is what is in the original; what is in a new container is what was put there."""
    base, _, last = path.rpartition(STEP)
    if last == "~" and base:
        return element_path(base)
    if last[0] == "^":
        return base
    return path if last == "[]" else join_path(path, "[]")


def item_paths(path: str, index: object) -> Paths:
    """The same for one item: of what was put into several places only what is at that one."""
    last = path.rpartition(STEP)[2]
    return (element_path(path),) if last[0] != "^" or last in ("^", f"^{index}") else FRESH


def container_paths(parts: Iterable[Paths], *, in_places: bool = False) -> Paths:
    """A new container with these in it. Of a tuple, or if nothing is known of some, their places matter."""
    found = list(parts)
    in_places = in_places or not all(found)
    return limit_paths(
        join_path(path, f"^{n}" if in_places else "^") for n, paths in enumerate(found) for path in paths
    )


def pair_path(path: str, place: int) -> str:
    """A new container of tuples that have in this place what is in that."""
    return join_path(element_path(path), f"^{place}", "^")


def element_paths(paths: Paths) -> Paths:
    return tuple(map(element_path, paths))


def copy_paths(paths: Iterable[str]) -> list[str]:
    return [join_path(path, "~") for path in paths]


def class_paths(paths: Paths) -> Paths:
    """The classes of these objects: that of a method's own object has a root of its own."""
    return tuple("c" if path == "s" else join_path(path, ".__class__") for path in paths)


def merge_variables(envs: list[dict[str, Paths]]) -> dict[str, Paths]:
    """A variable may be what it is in any of them."""
    found = dict(envs[0])
    for env in envs[1:]:
        for name, paths in env.items():
            if found.get(name) != paths:
                found[name] = limit_paths([*found.get(name, FRESH), *paths])
    return found


def is_about(asked: str, path: str) -> bool:
    """Whether it was asked for that object, or whether something was in it."""
    return path == asked or asked.startswith(path + STEP) or path.startswith(asked + STEP)
