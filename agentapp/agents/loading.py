"""The team that AGENTAPP_TEAM names."""

from __future__ import annotations

import importlib

from agentapp.agents.team import Team
from agentapp.errors import SettingError


def load_team(where: str) -> Team:
    """The `Team` that ``package.module:name`` points to."""
    module_name, _, name = where.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as exc:
        raise SettingError("AGENTAPP_TEAM", f"cannot load {where!r}: {exc}") from exc
    if not isinstance(found, Team):
        raise SettingError(
            "AGENTAPP_TEAM", f"{where!r} is a {type(found).__name__}, not an agentapp.agents.Team"
        )
    return found
