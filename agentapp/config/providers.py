"""The services that can answer for the model, and which of them is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentapp.errors import SettingError


@dataclass(frozen=True, slots=True)
class ModelProvider:
    """A service, or a stand-in for one, that answers for the model. AGENTAPP_PROVIDER names it."""

    name: str
    key_variable: str | None  # the variable that holds its key, a setting too; None if it needs none
    libraries: tuple[str, ...]  # what the gunicorn master imports before it forks, if the key is set
    is_free: bool


# In the order in which `auto` tries them.
PROVIDERS = (
    ModelProvider("anthropic", "ANTHROPIC_API_KEY", ("anthropic", "httpcore2", "httptools"), is_free=False),
    ModelProvider("demo", key_variable=None, libraries=(), is_free=True),
)


def provider_named(name: str) -> ModelProvider:
    (provider,) = [each for each in PROVIDERS if each.name == name]
    return provider


def choose_provider(wanted: str, environ: Mapping[str, str]) -> str:
    """The provider by that name; for ``auto`` the first one whose key is set or that needs none."""

    def is_usable(provider: ModelProvider) -> bool:
        return provider.key_variable is None or bool(environ.get(provider.key_variable, "").strip())

    if wanted == "auto":
        return next(each.name for each in PROVIDERS if is_usable(each))
    provider = provider_named(wanted)
    if not is_usable(provider):
        raise SettingError(str(provider.key_variable), f"needed because AGENTAPP_PROVIDER is {wanted!r}")
    return wanted
