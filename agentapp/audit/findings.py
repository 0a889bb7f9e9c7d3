"""A finding as it is reported, and the error for options that cannot be used."""

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
    """An option or configuration file cannot be used. The text is one line for the user."""
