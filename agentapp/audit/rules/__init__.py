"""All rules, by code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from textwrap import dedent
from types import MappingProxyType

from agentapp.audit.rules import itself, objects, surroundings
from agentapp.audit.rules.rule import Rule, Severity

__all__ = ["RULES", "Rule", "Severity"]


def _by_code(*rules: Rule) -> Mapping[str, Rule]:
    """Index the rules. Their examples are indented in the source, so they are dedented here."""
    plain = (replace(rule, bad=_plain(rule.bad), good=_plain(rule.good)) for rule in rules)
    return MappingProxyType({rule.code: rule for rule in plain})


def _plain(example: str) -> str:
    return dedent(example).lstrip("\n")


RULES = _by_code(*objects.RULES, *surroundings.RULES, *itself.RULES)
