"""What the server says when it is asked about models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Models:
    """``ids`` is None for a gateway without this endpoint. With a ``key``, no other is taken. A ``status``, a
    ``page`` or a ``location`` is the answer to everything.
    """

    ids: tuple[str, ...] | None = ("claude-sonnet-4-6",)
    key: str | None = None
    status: int = 200
    page: str = ""
    location: str = ""
    delay: float = 0.0

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        if self.page:
            return 200, self.page
        if self.status != 200:
            return _error(self.status, "api_error")
        given = headers.get("x-api-key") or (headers.get("authorization") or "").removeprefix("Bearer ")
        if self.key is not None and given != self.key:
            return _error(401, "authentication_error")
        if self.ids is None:
            return 404, {"detail": "Not Found"}
        _, _, model = path.partition("?")[0].partition("/v1/models/")
        if not model:
            return 200, {"data": [_model(each) for each in self.ids], "has_more": False}
        return (200, _model(model)) if model in self.ids else _error(404, "not_found_error")


def _model(name: str) -> dict[str, str]:
    return {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}


def _error(status: int, kind: str) -> tuple[int, Any]:
    return status, {"type": "error", "error": {"type": kind, "message": "as the test wants it"}}
