"""Functions on paths, the texts that are described in `agentapp.audit.facts`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agentapp.audit.facts import STEP, join_path

Paths = tuple[str, ...]  # the alternative paths of one object
FRESH: Final[Paths] = ()  # the paths of a new object, which nothing else refers to
OWN_MODULE: Final[Paths] = ("g:",)
MAX_PATHS = 4  # for one object
MAX_STEPS = 7  # in one path; longer paths are dropped


def add_steps(paths: Paths, *steps: str) -> Paths:
    """Append steps to all paths. A path that is too long is dropped."""
    if not paths:
        return FRESH
    if len(paths) == 1 == len(steps):
        return (f"{paths[0]}|{steps[0]}",) if paths[0].count(STEP) < MAX_STEPS else FRESH
    return tuple(join_path(path, *steps) for path in paths if path.count(STEP) < MAX_STEPS)


def limit_paths(paths: Iterable[str]) -> Paths:
    """The first few different paths."""
    return tuple(dict.fromkeys(paths))[:MAX_PATHS]


def element_path(path: str) -> str:
    """The path of an element. A copy has the elements of its original; a new container those put into it."""
    base, _, last = path.rpartition(STEP)
    if last == "~" and base:
        return element_path(base)
    if last[0] == "^":
        return base
    return path if last == "[]" else join_path(path, "[]")


def item_paths(path: str, index: object) -> Paths:
    """The paths of the item at one index. Of a new tuple, only the object that was put at that index."""
    last = path.rpartition(STEP)[2]
    return (element_path(path),) if last[0] != "^" or last in ("^", f"^{index}") else FRESH


def container_paths(parts: Iterable[Paths], *, in_places: bool = False) -> Paths:
    """The paths of a new container with these parts.

    The index of each part is kept for a tuple, and if a part is a new object.
    """
    found = list(parts)
    in_places = in_places or not all(found)
    return limit_paths(
        join_path(path, f"^{n}" if in_places else "^") for n, paths in enumerate(found) for path in paths
    )


def pair_path(path: str, place: int) -> str:
    """The path of a new container of tuples that hold an element of ``path`` at index ``place``."""
    return join_path(element_path(path), f"^{place}", "^")


def element_paths(paths: Paths) -> Paths:
    return tuple(map(element_path, paths))


def copy_paths(paths: Iterable[str]) -> list[str]:
    return [join_path(path, "~") for path in paths]


def class_paths(paths: Paths) -> Paths:
    """The paths of the classes of these objects; the class of ``self`` is the root ``c``."""
    return tuple("c" if path == "s" else join_path(path, ".__class__") for path in paths)


def merge_variables(envs: list[dict[str, Paths]]) -> dict[str, Paths]:
    """Merge the variables of several branches."""
    found = dict(envs[0])
    for env in envs[1:]:
        for name, paths in env.items():
            if found.get(name) != paths:
                found[name] = limit_paths([*found.get(name, FRESH), *paths])
    return found


def is_about(asked: str, path: str) -> bool:
    """Whether the checked path is that of the object, of a part of it, or of what contains it."""
    return path == asked or asked.startswith(path + STEP) or path.startswith(asked + STEP)
