"""Finds the files to read, and the module name of each.

Links to directories are not followed, so a loop of links is harmless and each file is found once. A path
that is named explicitly is always read, even if its name would otherwise be skipped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from agentapp.audit.reading import Place, Unreadable, reason_of

ENDINGS = (".py", ".pyw")
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
INIT = "__init__.py"


@dataclass(frozen=True, slots=True)
class Found:
    places: tuple[Place, ...]
    unreadable: tuple[Unreadable, ...]
    without: tuple[str, ...]  # named directories that contain no Python files


@dataclass(frozen=True, slots=True)
class _FoundFile:
    where: str
    root: str  # the directory from which its package is imported
    module: str

    @property
    def is_package(self) -> bool:
        return os.path.basename(self.where) == INIT

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def find(paths: Iterable[str], is_excluded: Callable[[str], bool]) -> Found:
    """Find all files below these paths. ``is_excluded`` is called with absolute paths."""
    found_files: dict[str, _FoundFile] = {}
    unreadable: list[Unreadable] = []
    without: list[str] = []
    shown = Shown()
    for path in paths:
        where = os.path.abspath(path)
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError) as exc:
            unreadable.append(Unreadable(shown(where) if path else path, 1, reason_of(exc)))
            continue
        if stat.S_ISDIR(mode):
            walk = _Walk(where, is_excluded, shown)
            for file, root in walk.files():
                found_files.setdefault(file, _FoundFile(file, root, _module_name(file, root)))
            unreadable += walk.unreadable
            if not walk.has_met and not walk.unreadable:
                without.append(shown(where))
        elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            root = _import_root(os.path.dirname(where))
            found_files.setdefault(where, _FoundFile(where, root, _module_name(where, root)))
        else:
            unreadable.append(Unreadable(shown(where), 1, "is neither a file nor a directory"))
    return Found(tuple(_name_modules(list(found_files.values()), shown)), tuple(unreadable), tuple(without))


class Shown:
    """Makes paths for messages: relative if they are below the current directory, with forward slashes."""

    def __init__(self) -> None:
        self._below = os.path.join(os.getcwd(), "")

    def __call__(self, where: str) -> str:
        path = where.removeprefix(self._below).replace(os.sep, "/")
        if os.path.join(where, "") == self._below:
            path = "."
        return _readable(path)


def _readable(name: str) -> str:
    """File names may be any bytes; the result is always valid text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


class _Walk:
    def __init__(self, top: str, is_excluded: Callable[[str], bool], shown: Shown) -> None:
        self.top, self.is_excluded, self.shown = top, is_excluded, shown
        self.unreadable: list[Unreadable] = []
        self.has_met = False

    def files(self) -> Iterator[tuple[str, str]]:
        """Each file, and the directory from which its package is imported."""
        left: list[tuple[str, str | None]] = [(self.top, None)]
        while left:
            directory, root_above = left.pop()
            try:
                with os.scandir(directory) as scanned:
                    entries = sorted(scanned, key=lambda entry: entry.name)
            except OSError as exc:
                self.unreadable.append(Unreadable(self.shown(directory), 1, reason_of(exc)))
                continue
            names = {entry.name for entry in entries}
            if "pyvenv.cfg" in names and directory != self.top:
                continue
            # A directory inside a package belongs to that package, even without an __init__.py.
            root = self._root(directory, root_above) if INIT in names else root_above
            for entry in entries:
                if entry.name.endswith(ENDINGS) and self._is_ours(entry):
                    self.has_met = True
                    yield entry.path, root or self.top
            below = [entry for entry in entries if self._is_entered(entry)]
            left += [(entry.path, root) for entry in reversed(below)]

    def _root(self, directory: str, root_above: str | None) -> str:
        if directory == self.top:
            return _import_root(directory)
        return root_above or os.path.dirname(directory)

    def _is_ours(self, entry: os.DirEntry[str]) -> bool:
        """Whether to read it. A Python file name that is not a readable file is reported."""
        if entry.name.startswith(".#"):  # an editor's lock file, which is a broken link
            return False
        try:
            if entry.is_dir() or self.is_excluded(entry.path):
                return False
            if entry.is_file():
                return True
            why = "is a link to nothing" if entry.is_symlink() else "is not a file"
        except OSError as exc:
            why = reason_of(exc)
        self.unreadable.append(Unreadable(self.shown(entry.path), 1, why))
        return False

    def _is_entered(self, entry: os.DirEntry[str]) -> bool:
        return (
            entry.is_dir(follow_symlinks=False)
            and entry.name not in SKIPPED
            and not entry.name.startswith(".")
            and not entry.name.endswith(".egg-info")
            and not self.is_excluded(entry.path)
        )


def _import_root(directory: str) -> str:
    while os.path.isfile(os.path.join(directory, INIT)):
        above = os.path.dirname(directory)
        if above == directory:
            break
        directory = above
    return directory


def _module_name(file: str, root: str) -> str:
    *parts, last = file.removeprefix(root).strip(os.sep).split(os.sep)
    if last != INIT or not parts:
        ending = next((ending for ending in ENDINGS if last.endswith(ending)), "")
        parts.append(last.removesuffix(ending))
    return _readable(".".join(part.replace(".", "_") for part in parts))


def _name_modules(found_files: Sequence[_FoundFile], shown: Shown) -> Iterator[Place]:
    """Give each module a unique name.

    Two directories may contain packages of the same name, as in a repository of several services. Then the
    second package gets another name, and imports from the files beside it are changed to match.
    """
    together: dict[tuple[str, str], list[_FoundFile]] = {}
    for each in found_files:
        together.setdefault((each.root, each.top), []).append(each)
    names, taken = _UniqueNames({top for _, top in together}), _UniqueNames(set())
    aliases: dict[str, list[tuple[str, str]]] = {}
    called: dict[str, str] = {}
    for (root, top), members in together.items():
        name = top
        if any(each.module in taken for each in members):
            name = names.new(top)
            aliases.setdefault(root, []).append((top, name))
        # As for `import`, a package takes precedence over a file of the same name.
        for each in sorted(members, key=lambda each: not each.is_package):
            called[each.where] = taken.new(f"{name}{each.module.removeprefix(top)}")
    for each in found_files:
        yield Place(
            each.where,
            shown(each.where),
            called[each.where],
            each.is_package,
            tuple(aliases.get(each.root, ())),
        )


class _UniqueNames:
    """Makes unique names by adding a number."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._count: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def new(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            self._count[wanted] = self._count.get(wanted, 1) + 1
            name = f"{wanted}#{self._count[wanted]}"
        self._taken.add(name)
        return name
