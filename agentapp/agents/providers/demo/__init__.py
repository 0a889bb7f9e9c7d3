"""The offline demo model. It answers by rules from what a model would see: all can be tried without a key."""

from __future__ import annotations

from agentapp.agents.provider import Provider
from agentapp.agents.providers.demo.provider import AsyncDemoProvider, DemoProvider, answer
from agentapp.config import Settings

__all__ = ["AsyncDemoProvider", "DemoProvider", "answer", "make"]


def make(settings: Settings) -> Provider:
    return DemoProvider(settings.demo_delay)
