"""The report as SARIF 2.1.0, a format that code hosts and editors read."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from agentapp.audit import baseline
from agentapp.audit.findings import Finding
from agentapp.audit.report import Report
from agentapp.audit.rules import RULES, Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def as_sarif(report: Report, *, version: str) -> str:
    driver = {
        "name": "agentapp audit",
        "semanticVersion": version,
        "rules": [_rule(rule) for rule in RULES.values()],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not report.unread}],
        "columnKind": "unicodeCodePoints",
        "results": list(_results(report.findings)),
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(rule: Rule) -> dict[str, Any]:
    words = re.findall(r"\w+", rule.title)
    text = f"{rule.why}\n\n{rule.fix}\n\nBad:\n\n{rule.bad}\nGood:\n\n{rule.good}"
    markdown = (
        f"{rule.why}\n\n{rule.fix}\n\n```python\n# bad\n{rule.bad}```\n\n```python\n# good\n{rule.good}```\n"
    )
    return {
        "id": rule.code,
        "name": "".join(f"{word[0].upper()}{word[1:]}" for word in words),
        "shortDescription": {"text": f"{rule.title[0].upper()}{rule.title[1:]}."},
        "fullDescription": {"text": rule.why},
        "help": {"text": text, "markdown": markdown},
        "defaultConfiguration": {"level": rule.severity},
    }


def _results(findings: Iterable[Finding]) -> Iterator[dict[str, Any]]:
    numbers = {code: number for number, code in enumerate(RULES)}
    seen: Counter[baseline.Key] = Counter()
    for finding in findings:
        key = baseline.key_of(finding.path, finding.rule, finding.message)
        seen[key] += 1
        yield {
            "ruleId": finding.rule,
            "ruleIndex": numbers[finding.rule],
            "level": finding.severity,
            "message": {"text": finding.message},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": _location(finding.path),
                        "region": {"startLine": finding.line},
                    }
                }
            ],
            "partialFingerprints": {"agentappAudit/v1": _fingerprint(key, seen[key])},
        }


def _location(path: str) -> dict[str, str]:
    """A path relative to the current directory, or an absolute URI for a file elsewhere."""
    if PurePath(path).is_absolute():
        return {"uri": PurePath(path).as_uri()}
    return {"uri": quote(path), "uriBaseId": "%SRCROOT%"}


def _fingerprint(key: baseline.Key, number: int) -> str:
    """Stays the same when the finding moves to another line. ``number`` tells equal findings apart."""
    return hashlib.sha256("\0".join((*key, str(number))).encode()).hexdigest()
