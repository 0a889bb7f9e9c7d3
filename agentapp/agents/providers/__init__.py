"""Providers: the models that agents may ask. Each is a module here with a ``make(settings)``."""

from __future__ import annotations

import importlib

from agentapp.agents.provider import Provider
from agentapp.config import Settings
from agentapp.errors import SettingError


def make(settings: Settings) -> Provider:
    """The provider that the settings name. Only its module is imported: an SDK can take most of a second."""
    name = settings.provider
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ImportError as exc:
        raise SettingError("AGENTAPP_PROVIDER", f"cannot load the provider {name!r}: {exc}") from exc
    make_provider = getattr(module, "make", None)
    if make_provider is None:
        raise SettingError("AGENTAPP_PROVIDER", f"{module.__name__} has no function make(settings)")
    provider: Provider = make_provider(settings)
    return provider
