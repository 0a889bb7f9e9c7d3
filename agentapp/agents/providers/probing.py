"""Whether the model could be asked, found out without asking it: what it says costs nothing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal, cast

from agentapp.config import Settings


@dataclass(frozen=True, slots=True)
class Probed:
    """``unknown``: nothing speaks against it, but only a paid call would tell."""

    outcome: Literal["usable", "unknown", "unusable"]
    text: str


def probe(settings: Settings, model: str, seconds: float) -> Probed:
    """Asks the provider of the settings, for about so long at most."""
    module = importlib.import_module(f"agentapp.agents.providers.{settings.provider}")
    if not hasattr(module, "probe"):
        return Probed("unknown", f"the provider {settings.provider} cannot be asked without a call")
    return cast(Probed, module.probe(settings, model, seconds))
