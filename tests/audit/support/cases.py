"""The labelled set: programs with hazards, and programs that only look like it. See docs/auditor.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentapp.audit.extract import extract
from agentapp.audit.judge import Hazard, hazards_in

CASES = Path(__file__).parent.parent / "cases"
MARK = re.compile(r"\s*# HAZARD$")


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    is_hazard: bool
    files: dict[str, str]
    marked: frozenset[tuple[str, int]]  # the lines with the writes

    def found(self) -> list[Hazard]:
        return audited(self.files)


def cases(part: str) -> Iterator[Case]:
    for label in ("hazard", "clean"):
        for path in sorted((CASES / part / label).glob("*.case")):
            yield _case(path, is_hazard=label == "hazard")


def _case(path: Path, *, is_hazard: bool) -> Case:
    head, *parts = re.split(r"^--- (.+)$", path.read_text(), flags=re.M)
    kind = re.search(r"^kind: (.+)$", head, re.M)
    assert kind, f"{path} says no kind"
    files, marked = dict[str, str](), set()
    for name, code in zip(parts[::2], parts[1::2], strict=True):
        lines = code.removeprefix("\n").split("\n")
        marked |= {(name, n) for n, line in enumerate(lines, 1) if MARK.search(line)}
        files[name] = "\n".join(MARK.sub("", line) for line in lines)
    return Case(path.stem, kind[1], is_hazard, files, frozenset(marked))


def audited(files: dict[str, str]) -> list[Hazard]:
    """The findings in a program that is given as texts."""
    modules = []
    for path, code in files.items():
        name = path.removesuffix(".py").replace("/", ".")
        is_package = name.rpartition(".")[2] == "__init__"
        name = name.removesuffix(".__init__") if is_package else name
        modules.append(extract(code.encode(), name, path, is_package=is_package))
    return hazards_in(modules)
