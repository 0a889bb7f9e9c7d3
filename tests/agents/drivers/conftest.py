"""A local Messages API, and a provider that calls it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentapp.agents.providers.anthropic import AnthropicProvider
from tests.agents.providers.anthropic.asking import KEY
from tests.support.messages_api import MessagesApi


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as running:
        yield running


@pytest.fixture
def claude(api: MessagesApi) -> Iterator[AnthropicProvider]:
    provider = AnthropicProvider(KEY, api.url)
    yield provider
    provider.close()
