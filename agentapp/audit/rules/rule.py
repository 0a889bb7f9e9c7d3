"""A rule: what it finds, why that is a hazard, and what to do instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Rule:
    code: str
    title: str
    severity: Severity
    why: str
    fix: str
    bad: str
    good: str
