"""The parts that live as long as the process, how they start and end, and how a view gets at them."""

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
from agentapp.turns.service import TurnService


@dataclass(frozen=True, slots=True)
class Parts:
    """What `create_app` puts into ``app.extensions["agentapp"]``.

    A server calls ``start`` once in each worker. To end a worker it calls ``drain`` until that returns True,
    and then ``close``.
    """

    settings: Settings
    binder: ThreadBinder
    db: Database
    accounts: Accounts
    sign_ins: SignIns
    chats: Chats
    turns: TurnService
    telemetry: Violations

    @property
    def demo(self) -> bool:
        return self.settings.provider == "demo"

    def start(self, threads: int | None = None) -> None:
        """Call it in each worker, after the fork. ``threads`` is how many the worker really has."""
        self.turns.start(threads or self.settings.threads, self.settings.threads_reserved)

    def drain(self, grace: float) -> bool:
        """The worker is to end. Let its turns go on for most of ``grace`` seconds, then interrupt them.

        Returns at once, so that it may be called in a signal handler: True if all turns have ended or
        the time is over. Call it again until then; another call can only shorten the time.
        """
        return self.turns.drain(grace)

    def close(self) -> None:
        """End the background thread and give the connections back."""
        self.turns.close()
        self.db.close()


def parts() -> Parts:
    return cast(Parts, current_app.extensions["agentapp"])


def request_id() -> str:
    """What a person can quote when something went wrong, because it is in the log too."""
    scope: RequestScope | None = g.get("scope")
    return scope.request_id if scope is not None else "-"
