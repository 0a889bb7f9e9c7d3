"""What the auditor tells, and how it says that it was asked something it cannot do."""

from __future__ import annotations

from dataclasses import dataclass

from agentapp.audit.rules import Severity


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    path: str
    line: int
    rule: str
    severity: Severity
    message: str


class Unusable(Exception):
    """An option or a file of options makes no sense. The text is one line for the person who gave it."""
