"""Making the provider that the settings name: one module for each, imported only when it is needed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from agentapp.agents import providers
from agentapp.agents.providers.anthropic import AnthropicProvider
from agentapp.agents.providers.demo import DemoProvider
from agentapp.agents.providers.retrying import Retrying
from agentapp.config import PROVIDERS, ModelProvider, Settings
from agentapp.errors import SettingError
from agentapp.parsing import settings_of
from tests.support.scripted import Scripted


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(instance=tmp_path, database_url="sqlite:///x", secret_key="x" * 32)


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_every_provider_that_can_be_chosen_is_a_module_with_make(provider: ModelProvider) -> None:
    module = import_module(f"agentapp.agents.providers.{provider.name}")
    assert callable(module.make)


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_the_key_of_every_provider_is_a_setting(provider: ModelProvider) -> None:
    variables = {declared.variable for declared in settings_of(Settings).values()}
    assert provider.key_variable is None or provider.key_variable in variables


def test_the_demo_model_needs_no_key(settings: Settings) -> None:
    assert isinstance(providers.make(replace(settings, provider="demo")), DemoProvider)


def test_claude_is_made_with_retries(settings: Settings) -> None:
    made = providers.make(replace(settings, provider="anthropic", anthropic_api_key="key"))
    assert isinstance(made, Retrying)
    assert isinstance(made._provider, AnthropicProvider)


def test_a_new_provider_is_a_module_with_make(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    module, model = ModuleType("agentapp.agents.providers.mine"), Scripted("hello")
    module.make = lambda given: (given, model)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    own = replace(settings, provider="mine")
    assert providers.make(own) == (own, model)


@pytest.mark.parametrize("name", ["nobody", "", "no.such", "../demo"])
def test_a_name_without_a_module_is_a_setting_that_is_wrong(settings: Settings, name: str) -> None:
    with pytest.raises(
        SettingError, match=f"AGENTAPP_PROVIDER.*cannot load the provider {name!r}: No module"
    ):
        providers.make(replace(settings, provider=name))


def test_a_module_without_make_is_a_setting_that_is_wrong(settings: Settings) -> None:
    wanted = r"AGENTAPP_PROVIDER.*agentapp\.agents\.providers\.retrying has no function make\(settings\)"
    with pytest.raises(SettingError, match=wanted):
        providers.make(replace(settings, provider="retrying"))


def test_no_sdk_is_imported_before_its_provider_is_made() -> None:
    program = "import sys, agentapp.agents.providers; sys.exit('anthropic' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
