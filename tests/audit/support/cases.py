"""The labelled set: small programs with hazards, and programs that only look as if they had one.

The cases are in ``tests/audit/cases``, one file for each topic. The rounds ``tuning-*`` are in one directory
and the rounds ``held-out*`` in another, so that a case which was kept aside is not read by accident. A file
holds one case after the other, each under a header line::

    === tuning-f hazard lock-helper-forgotten
    kind: locked-sometimes
    why: One sentence for people.
    --- app.py
    ...
    --- state.py
    ...

The header names the round, the verdict (``hazard`` or ``clean``) and the case. A line that begins with
``===`` is always a header, so no line of a program may begin with it. In a hazard, each line with a wrong
write ends with ``# HAZARD``; the loader takes that mark out again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentapp.audit.extract import extract
from agentapp.audit.judge import Hazard, hazards_in

CASES = Path(__file__).parent.parent / "cases"
HEADER = re.compile(r"=== (?P<round>[\w-]+) (?P<verdict>hazard|clean) (?P<name>[\w-]+)")
MARK = re.compile(r"\s*# HAZARD$")


@dataclass(frozen=True)
class Case:
    topic: str  # the file that the case is in
    round: str
    name: str
    is_hazard: bool
    files: dict[str, str]
    marked: frozenset[tuple[str, int]]  # path and line of each wrong write

    def __str__(self) -> str:
        return f"{self.topic}: {self.round}/{self.name}"

    def found(self) -> list[Hazard]:
        return audited(self.files)


def topics(part: str) -> list[str]:
    """The topics of a part, which is ``tuning`` or ``held_out``."""
    return sorted(path.stem for path in (CASES / part).glob("*.cases"))


def cases(part: str, topic: str) -> Iterator[Case]:
    path = CASES / part / f"{topic}.cases"
    before, *blocks = re.split(r"^(?====)", path.read_text(), flags=re.M)
    assert not before, f"{path} does not begin with a header"
    for block in blocks:
        header, _, text = block.partition("\n")
        labels = HEADER.fullmatch(header)
        assert labels, f"{path} has a header that cannot be read: {header}"
        assert text.startswith("kind: "), f"{path}: {header} does not say its kind"
        files, marked = _files(text)
        yield Case(
            topic, labels["round"], labels["name"], labels["verdict"] == "hazard", files, frozenset(marked)
        )


def _files(text: str) -> tuple[dict[str, str], set[tuple[str, int]]]:
    """The files of a case without the marks, and where the marks were."""
    _, *parts = re.split(r"^--- (.+)$", text, flags=re.M)
    files, marked = dict[str, str](), set[tuple[str, int]]()
    for name, code in zip(parts[::2], parts[1::2], strict=True):
        lines = code.removeprefix("\n").split("\n")
        marked |= {(name, n) for n, line in enumerate(lines, 1) if MARK.search(line)}
        files[name] = "\n".join(MARK.sub("", line) for line in lines)
    return files, marked


def audited(files: dict[str, str]) -> list[Hazard]:
    """The findings in a program that is given as texts."""
    modules = []
    for path, code in files.items():
        name = path.removesuffix(".py").replace("/", ".")
        is_package = name.rpartition(".")[2] == "__init__"
        name = name.removesuffix(".__init__") if is_package else name
        modules.append(extract(code.encode(), name, path, is_package=is_package))
    return hazards_in(modules)
