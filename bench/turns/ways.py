"""How one speaks to each kind of server: what a message is on its wire, and what it goes over."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlencode

from bench.turns.exchange import Connection, connected
from bench.turns.peers import chainlit_client
from bench.turns.peers.chainlit_client import ChainlitConnection
from bench.turns.peers.servers import MASTER_KEY
from bench.turns.plans import Person, Phase


@dataclass(frozen=True)
class Way:
    connected: Callable[[int], Awaitable[Connection | ChainlitConnection]]
    request: Callable[[Person, str, Phase], bytes]


def form(person: Person, path: str, phase: Phase) -> bytes:
    """As the pages of agentapp send it."""
    body = urlencode({"csrf_token": person.csrf, "message": phase.message})
    head = f"Accept: {phase.accept}\r\nCookie: {person.cookie}\r\n"
    return _post(path, head, "application/x-www-form-urlencoded", body)


def chat_completion(person: Person, path: str, phase: Phase) -> bytes:
    """As clients of OpenAI's API send it."""
    messages = [{"role": "user", "content": phase.message}]
    body = json.dumps({"model": "claude-sonnet-4-6", "max_tokens": 4096, "messages": messages})
    return _post(path, f"Authorization: Bearer {MASTER_KEY}\r\n", "application/json", body)


def _post(path: str, head: str, kind: str, body: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


WAYS = {
    "form": Way(connected, form),
    "chat completions": Way(connected, chat_completion),
    "chainlit": Way(chainlit_client.connected, chainlit_client.message),
}
