"""The team of agents and the model that answers for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from agentapp.agents.loading import load_team
from agentapp.agents.providers.probing import probe
from agentapp.agents.team import Team
from agentapp.cli.checks.line import Line, State, do, note, ok
from agentapp.config import Settings
from agentapp.errors import SettingError
from agentapp.parsing import is_loopback
from agentapp.server.options import ServerOptions

PROBE_SECONDS = 8.0
STATES: Mapping[str, State] = MappingProxyType({"usable": "ok", "unknown": "note", "unusable": "do"})


def check_model(environ: Mapping[str, str], settings: Settings, server: ServerOptions) -> Iterator[Line]:
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)  # agentapp: shared ok - gunicorn does the same, and this process only looks
    try:
        team = load_team(settings.team)
    except SettingError as error:
        yield do("team", f"{error}")
        return
    except Exception as error:  # whatever somebody's module does when it is imported
        yield do("team", f"AGENTAPP_TEAM: to import {settings.team} raises {type(error).__name__}")
        return
    agents = ", ".join(agent.name for agent in (team.front, *team.specialists))
    yield ok("team", f"{settings.team}: {agents}")
    if settings.provider == "demo":
        yield _demo(environ, server)
    else:
        yield from _probed(settings, team)


def _demo(environ: Mapping[str, str], server: ServerOptions) -> Line:
    text = "the offline demo model answers, which only repeats and follows rules"
    if is_loopback(server.bind):
        return ok("provider", text)
    if environ.get("AGENTAPP_PROVIDER", "").strip() == "demo":
        return note("provider", f"{text}, and other machines may ask it")
    return do("provider", f"{text}, and other machines may ask it: set ANTHROPIC_API_KEY")


def _probed(settings: Settings, team: Team) -> Iterator[Line]:
    for model in sorted(team.models(settings.model)):
        found = probe(settings, model, PROBE_SECONDS)
        yield Line("provider", STATES[found.outcome], found.text)
        if found.outcome == "unusable" and model not in found.text:
            return  # it is not about this model, so it would be the same for all
