"""What lives as long as the process, and the one way a view gets at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flask import current_app, g

from agentapp.config import Settings
from agentapp.guardrails.sign_in import SignIns
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage.accounts import Accounts
from agentapp.storage.chats import Chats
from agentapp.storage.db import Database
from agentapp.telemetry import Violations
from agentapp.turns.service import Stage
from agentapp.turns.turn import Answering


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    binder: ThreadBinder
    db: Database
    accounts: Accounts
    sign_ins: SignIns
    chats: Chats
    answering: Answering
    stage: Stage
    violations: Violations

    @property
    def demo(self) -> bool:
        return self.settings.provider == "demo"


def parts() -> Parts:
    return cast(Parts, current_app.extensions["agentapp"])


def request_id() -> str:
    """What a person can quote when something went wrong: it is in the log too."""
    scope: RequestScope | None = g.get("scope")
    return scope.request_id if scope is not None else "-"
