"""Settings: declared in one place, read from the environment once, checked, frozen."""

from agentapp.config.loading import load
from agentapp.config.providers import PROVIDERS, ModelProvider, choose_provider, provider_named
from agentapp.config.settings import Settings

__all__ = ["PROVIDERS", "ModelProvider", "Settings", "choose_provider", "load", "provider_named"]
