"""The report as text, as JSON, and as GitHub workflow commands."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from agentapp.audit.findings import Finding
from agentapp.audit.reading import lines_of
from agentapp.audit.report import Report
from agentapp.audit.rules import RULES, Rule, Severity

MAX_LINE_LENGTH = 200  # A longer line of source is cut in the text format.
BOLD, DIM, RED, YELLOW, CYAN = "1", "2", "31", "33", "36"


def as_json(report: Report) -> str:
    return json.dumps([asdict(finding) for finding in report.findings], indent=2)


def as_github(report: Report) -> str:
    return "\n".join(_command(finding) for finding in report.findings)


def as_text(report: Report, *, coloured: bool) -> str:
    return "\n".join(_Text(report, coloured).lines())


def explained(rule: Rule) -> str:
    parts = (
        f"{rule.code}: {rule.title} ({rule.severity})",
        f"Why: {rule.why}",
        "Bad:",
        textwrap.indent(rule.bad.rstrip("\n"), "    "),
        "Good:",
        textwrap.indent(rule.good.rstrip("\n"), "    "),
        f"Fix: {rule.fix}",
    )
    return "\n\n".join(parts)


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def plain(text: str) -> str:
    """Escape control characters, so that audited source cannot act on the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


class _Text:
    def __init__(self, report: Report, coloured: bool) -> None:
        self.report, self.coloured = report, coloured
        self._lines_of = ("", list[str]())  # Findings are sorted by file, so the last file is enough.

    def lines(self) -> Iterator[str]:
        for finding in self.report.findings:
            yield from self._finding(finding)
            yield ""
        report = self.report
        parts = [
            counted(report.files, "file"),
            counted(len(report.findings), "finding"),
            f"{report.suppressed} suppressed",
        ]
        yield ", ".join([*parts, *([f"{report.excused} in the baseline"] if report.excused else [])])

    def _finding(self, finding: Finding) -> Iterator[str]:
        rule, colour = RULES[finding.rule], _colour(finding.severity)
        where = self._paint(f"{plain(finding.path)}:{finding.line}", BOLD)
        yield f"{where}: {self._paint(f'{finding.rule} {finding.severity}', colour)}: {rule.title}"
        yield f"  {plain(finding.message)}"
        yield from self._excerpt(finding, colour)
        yield f"  {self._paint('fix:', BOLD)} {rule.fix}"

    def _excerpt(self, finding: Finding, colour: str) -> Iterator[str]:
        """The line of the finding, marked, between the lines before and after it."""
        if finding.path not in self.report.sources:
            return
        if self._lines_of[0] != finding.path:
            self._lines_of = (finding.path, lines_of(self.report.sources[finding.path]))
        lines = self._lines_of[1]
        last = min(finding.line + 1, len(lines))
        width = len(str(last))
        for number in range(max(finding.line - 1, 1), last + 1):
            text = lines[number - 1]
            text = text if len(text) <= MAX_LINE_LENGTH else f"{text[:MAX_LINE_LENGTH]}..."
            text = plain(text).replace("\t", "    ")
            is_marked = number == finding.line
            line = f"  {'>' if is_marked else ' '} {number:>{width}} | {text}".rstrip()
            yield self._paint(line, colour if is_marked else DIM)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.coloured else text


def _colour(severity: Severity) -> str:
    match severity:
        case "error":
            return RED
        case "warning":
            return YELLOW
        case "note":
            return CYAN


def _command(finding: Finding) -> str:
    level = "notice" if finding.severity == "note" else finding.severity
    title = f"{finding.rule} {RULES[finding.rule].title}"
    place = f"file={_property(finding.path)},line={finding.line},title={_property(title)}"
    return f"::{level} {place}::{_data(finding.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
