"""A local Messages API, and both providers asking it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentapp.agents.providers.anthropic import AnthropicProvider
from tests.agents.providers.anthropic.asking import KEY, KINDS
from tests.support.messages_api import MessagesApi


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    before = set(threading.enumerate())
    with MessagesApi() as running:
        yield running
    assert set(threading.enumerate()) <= before


@pytest.fixture(params=KINDS)
def ask(request: pytest.FixtureRequest, api: MessagesApi) -> Iterator[Any]:
    drive, provider = KINDS[request.param]
    driver = drive(provider(KEY, api.url))
    yield driver
    driver.close()


@pytest.fixture
def claude(api: MessagesApi) -> Iterator[AnthropicProvider]:
    provider = AnthropicProvider(KEY, api.url)
    yield provider
    provider.close()
