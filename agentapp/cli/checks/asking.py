"""One request over HTTP, as plain as can be: no redirect is followed, and it takes a few seconds at most."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult

SECONDS = 5.0  # for each step of it
READ_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class Answer:
    """``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def detail(self) -> object:
        """What a refusal of ours says."""
        try:
            found: Any = json.loads(self.body)
        except ValueError:
            return None
        return found.get("detail") if isinstance(found, dict) else None


def ask(there: SplitResult, method: str, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Raises `OSError` or `HTTPException`; `ValueError` for a port that there cannot be."""
    kind = HTTPSConnection if there.scheme == "https" else HTTPConnection
    connection = kind(there.hostname or "", there.port, timeout=SECONDS)
    try:
        sent = {"Accept": "application/json", "User-Agent": "agentapp-doctor", **(headers or {})}
        connection.request(method, there.path.rstrip("/") + path, headers=sent)
        found = connection.getresponse()
        names = {name.lower(): value for name, value in found.getheaders()}
        return Answer(found.status, names, found.read(READ_BYTES))
    finally:
        connection.close()
