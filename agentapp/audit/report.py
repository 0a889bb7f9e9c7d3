"""Runs an audit: finds the files, reads each once, judges them together and makes the report."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from agentapp.audit import baseline, cache
from agentapp.audit.facts import Module
from agentapp.audit.files import find
from agentapp.audit.findings import Finding, Unusable
from agentapp.audit.judge import Hazard, hazards_in
from agentapp.audit.options import UNREADABLE, Options
from agentapp.audit.reading import File, Unreadable, open_file, read
from agentapp.audit.suppressions import Comments, apply_comments, find_comments

Progress = Callable[[int, int], None]  # the number of files read, and of all files


@dataclass(frozen=True, slots=True)
class Report:
    files: int  # the number of files that were found
    findings: tuple[Finding, ...]
    suppressed: int
    excused: int  # the number of findings that are in the baseline
    without: tuple[str, ...]  # named directories that contain no Python files
    sources: Mapping[str, bytes]  # the contents of files that have findings

    @property
    def unread(self) -> int:
        return sum(finding.rule == UNREADABLE for finding in self.findings)

    @property
    def exit_code(self) -> int:
        return 2 if self.unread else 1 if self.findings else 0


def audit(
    paths: Iterable[str],
    options: Options,
    *,
    excused: Counter[baseline.Key],
    progress: Progress,
    kept_in: Path | None = None,
) -> Report:
    """Run the audit. Raises `Unusable`.

    ``excused`` is the baseline and ``kept_in`` the directory of the cache; None means no cache.
    """
    found = find(paths, options.is_excluded)
    unreadable = list(found.unreadable)
    files: list[File] = []
    for place in found.places:
        try:
            files.append(open_file(place))
        except Unreadable as exc:
            unreadable.append(exc)
    verdict = _judge(files, progress) if kept_in is None else _judge_cached(files, progress, kept_in)
    unreadable += (Unreadable(*each) for each in verdict.unreadable)
    comments: dict[str, Comments] = {}
    for file in files:
        try:
            if (said := find_comments(file)) is not None:
                comments[file.place.path] = said
        except Unreadable as exc:
            if exc.path not in {path for path, _, _ in verdict.unreadable}:
                unreadable.append(exc)
    sources = {file.place.path: file.source for file in files}
    judged = apply_comments(verdict.hazards, comments)
    hazards = [*judged.left, *(Hazard(each.path, each.line, UNREADABLE, each.why) for each in unreadable)]
    findings, in_baseline = baseline.without(sorted(_to_findings(hazards, options)), excused)
    return Report(
        len(found.places),
        tuple(findings),
        sum(options.severity_of(hazard.rule) is not None for hazard in judged.suppressed),
        in_baseline,
        found.without,
        {path: sources[path] for path in {finding.path for finding in findings} & sources.keys()},
    )


def _find_hazards(modules: Iterable[Module]) -> list[Hazard]:
    """Judge the modules. Raises `Unusable` if the names of the program are nested too deeply."""
    try:
        return hazards_in(modules)
    except RecursionError:
        raise Unusable("the names of this program lead too far from one to the next to be followed") from None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for a tree of files, before suppressions and options are applied."""

    hazards: tuple[Hazard, ...]
    unreadable: tuple[tuple[str, int, str], ...]

    def as_json(self) -> Any:
        return {"hazards": [astuple(hazard) for hazard in self.hazards], "unreadable": self.unreadable}

    @classmethod
    def from_json(cls, found: Any) -> Verdict:
        hazards = tuple(Hazard(*each) for each in found["hazards"])
        return cls(hazards, tuple((path, line, why) for path, line, why in found["unreadable"]))


def _judge_cached(files: Sequence[File], progress: Progress, directory: Path) -> Verdict:
    key = cache.key_of((file.place.path, repr(file.place), file.source) for file in files)
    try:
        return Verdict.from_json(cache.load(directory, key))
    except (LookupError, TypeError, ValueError):
        verdict = _judge(files, progress)
    cache.keep(directory, key, verdict.as_json())
    return verdict


def _judge(files: Sequence[File], progress: Progress) -> Verdict:
    modules: list[Module] = []
    unreadable: list[tuple[str, int, str]] = []
    with _without_garbage_collection():
        for number, file in enumerate(files, 1):
            try:
                modules.append(_rename_imports(read(file), dict(file.place.aliases)))
            except Unreadable as exc:
                unreadable.append((exc.path, exc.line, exc.why))
            progress(number, len(files))
        return Verdict(tuple(_find_hazards(modules)), tuple(unreadable))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Turn the garbage collector off.

    The analysis makes millions of small objects without reference cycles. Searching them for cycles would
    take longer than the analysis.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _to_findings(hazards: Iterable[Hazard], options: Options) -> Iterable[Finding]:
    for hazard in hazards:
        severity = options.severity_of(hazard.rule)
        if severity is not None:
            yield Finding(hazard.path, hazard.line, hazard.rule, severity, hazard.message)


def _rename_imports(module: Module, aliases: Mapping[str, str]) -> Module:
    """Make its imports refer to the packages beside it, not to others of the same name."""

    def moved(name: str) -> str:
        top, dot, rest = name.partition(".")
        return f"{aliases.get(top, top)}{dot}{rest}"

    if not aliases:
        return module
    imports = {name: (moved(base), what) for name, (base, what) in module.imports.items()}
    return replace(module, imports=imports, stars=tuple(map(moved, module.stars)))
