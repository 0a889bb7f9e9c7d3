"""Claude as a provider, through the Messages API."""

from __future__ import annotations

from agentapp.agents.provider import Provider
from agentapp.agents.providers.anthropic.probing import probe
from agentapp.agents.providers.anthropic.provider import AnthropicProvider, AsyncAnthropicProvider
from agentapp.agents.providers.retrying import Retrying
from agentapp.config import Settings

__all__ = ["AnthropicProvider", "AsyncAnthropicProvider", "make", "probe"]


def make(settings: Settings) -> Provider:
    key, address = settings.anthropic_api_key or "", settings.anthropic_base_url
    provider = AnthropicProvider(key, address, prompt_cache=settings.prompt_cache)
    provider.make_client()
    return Retrying(provider)
