"""Asks the Messages API about a model by its models endpoint, which is free."""

from __future__ import annotations

from urllib.parse import urlsplit

import anthropic
import httpx2
from anthropic.types import ModelInfo

from agentapp.agents.providers.anthropic.clients import DEFAULT_BASE_URL, client_maker
from agentapp.agents.providers.anthropic.errors import UnusableKey
from agentapp.agents.providers.probing import Probed
from agentapp.config import Settings

KEY = "ANTHROPIC_API_KEY"
ADDRESS = "ANTHROPIC_BASE_URL"


def probe(settings: Settings, model: str, seconds: float) -> Probed:
    address = settings.anthropic_base_url or DEFAULT_BASE_URL
    where = urlsplit(address).netloc.rpartition("@")[2] or address
    make = client_maker(anthropic.Anthropic, settings.anthropic_api_key or "", settings.anthropic_base_url)
    try:
        # As in every other call no redirect is followed: the key would be sent along.
        http = anthropic.DefaultHttpxClient(follow_redirects=False)
        with make(timeout=seconds, http_client=http) as client:
            return _ask(client, model, where)
    except UnusableKey:
        return Probed("unusable", f"{KEY} is not one line of plain characters")
    except anthropic.APITimeoutError:
        return Probed("unusable", f"{where} does not answer within {seconds:g} s: {_reach(settings)}")
    except anthropic.APIStatusError as error:
        return _refused(error, where)
    except (anthropic.AnthropicError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        cause = error.__cause__ or error
        return Probed("unusable", f"{where} cannot be reached ({type(cause).__name__}): {_reach(settings)}")


def _ask(client: anthropic.Anthropic, model: str, where: str) -> Probed:
    try:
        found: object = client.models.retrieve(model)
    except anthropic.NotFoundError:
        return _without_this_model(client, model, where)
    if not isinstance(found, ModelInfo) or not found.id:
        return Probed("unusable", f"{where} answers, but not as the Messages API does: is {ADDRESS} right?")
    return Probed("usable", f"{where} takes the key and has {model}")


def _without_this_model(client: anthropic.Anthropic, model: str, where: str) -> Probed:
    """There is no such model; or none can be asked about there, as in many gateways."""
    known: object = client.models.list(limit=1)
    if not getattr(known, "data", None):
        return _cannot_tell(where)
    text = f"{where} takes the key, but has no model {model}: see AGENTAPP_MODEL, or the team"
    return Probed("unusable", text)


def _refused(error: anthropic.APIStatusError, where: str) -> Probed:
    match error.status_code:
        case 401:
            return Probed("unusable", f"{where} does not take the key: is {KEY} whole, and not withdrawn?")
        case 403:
            return Probed("unusable", f"{where} takes the key, but does not let it ask: what may {KEY} do?")
        case 404 | 405 | 501:
            return _cannot_tell(where)
        case status if status < 400:
            return Probed("unusable", f"{where} sends us elsewhere ({status}): set {ADDRESS} to that address")
        case status if status == 429 or status >= 500:
            return Probed("unknown", f"{where} is there, but busy or failing ({status}): try again later")
        case status:
            return Probed("unusable", f"{where} refuses to tell ({status})")


def _cannot_tell(where: str) -> Probed:
    text = f"{where} is there, but has no list of models: only a message will show the rest"
    return Probed("unknown", text)


def _reach(settings: Settings) -> str:
    way = f"is {ADDRESS} right?" if settings.anthropic_base_url else "may this machine reach it?"
    return f"{way} A proxy is set by HTTPS_PROXY"
