"""Settings are read from the environment once, and each is checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentapp.config.providers import choose_provider
from agentapp.config.settings import Settings
from agentapp.config.webhook import key_for
from agentapp.errors import SettingError
from agentapp.instance import kept_secret
from agentapp.parsing import ADDRESSES, Setting, is_loopback, settings_of


def load(environ: Mapping[str, str] | None = None, *, bind: str | None = None) -> Settings:
    """Read and check every variable. The first bad one is a `SettingError` that names it.

    ``bind`` is the address to serve on, if that is what the settings are for.
    """
    variables = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for name, declared in settings_of(Settings).items():
        values[name] = _value(name, declared, variables, values, bind)
    return Settings(**values)


def _value(
    name: str, declared: Setting[Any], environ: Mapping[str, str], before: Mapping[str, Any], bind: str | None
) -> object:
    """What one setting is. The few that depend on settings ``before`` them are named here, and only here."""
    match name:
        case "provider":
            return choose_provider(declared.read(environ), environ)
        case "database_url":
            return declared.read(environ, default=f"sqlite:///{before['instance'] / 'agentapp.sqlite3'}")
        case "secret_key" if not declared.is_set(environ):
            return _secret_without_a_setting(declared.variable, before["instance"], bind)
        case "hosts" if not declared.is_set(environ) and bind is not None and not is_loopback(bind):
            return ("localhost", ADDRESSES)  # another site's page can point a name here, but no address
        case "breaker_cooldown_max":
            return _longest_cooldown(declared, environ, before["breaker_cooldown"])
        case "alert_webhook_secret":
            return key_for(before["alert_webhook"], declared, environ)
    return declared.read(environ)


def _longest_cooldown(declared: Setting[float], environ: Mapping[str, str], cooldown: float) -> float:
    """By default at least as long as the first one."""
    longest = declared.read(environ, default=str(max(declared.parse(declared.default), cooldown)))
    if longest < cooldown:
        raise SettingError(declared.variable, f"must be at least AGENTAPP_BREAKER_COOLDOWN, {cooldown:g}")
    return longest


def _secret_without_a_setting(variable: str, instance: Path, bind: str | None) -> str:
    if bind is not None and not is_loopback(bind):
        raise SettingError(variable, f"required when serving on {bind}, which is not a loopback address")
    return kept_secret(instance)
