"""What a row of the audit log tells besides, as people read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import json


def words(detail: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values. That something was done once goes without saying."""
    shown = {name: value for name, value in detail.items() if (name, value) != ("count", 1)}
    return [(name.replace("_", " "), _text(value)) for name, value in shown.items()]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
