"""The baseline: known findings that are not reported again, read from an earlier ``--format json``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentapp.audit.findings import Finding, Unusable

Key = tuple[str, str, str]

NUMBERS = re.compile(r"(?<![A-Za-z0-9_])\d+(?:, \d+)*")


def key_of(path: str, rule: str, message: str) -> Key:
    """The key of a finding. It ignores line numbers, so it stays the same when an edit moves lines."""
    return path, rule, NUMBERS.sub("#", message).replace("in lines #", "in line #")


def nothing() -> Counter[Key]:
    """An empty baseline."""
    return Counter()


def load(name: str) -> Counter[Key]:
    """Read the baseline file. Raises `Unusable` if it cannot be used."""
    try:
        items = json.loads(Path(name).read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        what = f"cannot be read: {exc.strerror}" if isinstance(exc, OSError) else "is not JSON"
        raise Unusable(f"the baseline {name} {what}") from None
    if not isinstance(items, list):
        raise Unusable(f"the baseline {name} is not a list, as --format json prints it")
    return Counter(_key(name, number, item) for number, item in enumerate(items, 1))


def without(findings: Iterable[Finding], excused: Counter[Key]) -> tuple[list[Finding], int]:
    """The findings that are not in the baseline, and how many are in it.

    Each entry of the baseline excuses one finding.
    """
    remaining, left, count = excused.copy(), list[Finding](), 0
    for finding in findings:
        key = key_of(finding.path, finding.rule, finding.message)
        if finding.rule != "ISO099" and remaining[key] > 0:
            remaining[key] -= 1
            count += 1
        else:
            left.append(finding)
    return left, count


def _key(name: str, number: int, item: Any) -> Key:
    texts = [item.get(field) for field in ("path", "rule", "message")] if isinstance(item, dict) else []
    match texts:
        case [str(path), str(rule), str(message)]:
            return key_of(path, rule, message)
    raise Unusable(f"the baseline {name} has no path, rule and message in its finding {number}")
