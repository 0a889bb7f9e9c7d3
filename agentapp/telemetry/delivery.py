"""Alerts are sent to the webhook on a thread of their own, so that nothing else waits for the receiver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from agentapp.isolation import Binder, RequestScope, new_id
from agentapp.logs import described
from agentapp.telemetry.alerts import StoredAlert
from agentapp.telemetry.webhook import SECONDS, DeliveryFailed

DELIVER_SECONDS = 1.0  # how often it is looked whether there is something to send
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(hours=1)
MAX_TRIES = 20  # together about half a day
MAX_AGE = timedelta(days=1)  # if the server was away meanwhile
END_SECONDS = 5.0

log = logging.getLogger(__name__)


class Outbox(Protocol):
    def has_due(self) -> bool: ...
    def claim(self) -> StoredAlert | None: ...
    def delivered(self, alert: StoredAlert) -> None: ...
    def failed(self, alert: StoredAlert, problem: str, next_at: datetime | None) -> None: ...


class Receiver(Protocol):
    def send(self, alert: StoredAlert) -> None:
        """Raises `DeliveryFailed`."""

    def give_up(self) -> None:
        """Have a `send` that is under way fail."""


def next_try(alert: StoredAlert, now: datetime) -> datetime | None:
    """When to try again after one more try has failed; None if it is given up."""
    since = alert.delivery_since or now
    if alert.delivery_attempts >= MAX_TRIES or now - since >= MAX_AGE:
        return None
    pause: timedelta = FIRST_PAUSE * 2 ** (alert.delivery_attempts - 1)
    return now + min(pause, LONGEST_PAUSE)


class DeliverAlerts:  # agentapp: shared ok - changed by the heartbeat's thread alone, and by its own thread
    """A job of the heartbeat. It only looks whether something is due, and starts the thread that sends it."""

    name = "send alerts to the webhook"

    def __init__(
        self,
        outbox: Outbox,
        receiver: Receiver,
        binder: Binder,
        clock: Callable[[], datetime],
    ) -> None:
        self._outbox, self._receiver, self._binder = outbox, receiver, binder
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._began = 0.0  # the try that is under way
        self._ending = threading.Event()

    def run(self, now: float) -> bool:
        if self._thread is not None and self._thread.is_alive():
            if now - self._began > SECONDS:  # it may answer a byte now and then, for ever
                self._receiver.give_up()
        elif self._outbox.has_due():
            self._ending.clear()
            self._thread = threading.Thread(target=self._deliver, name="agentapp-webhook", daemon=True)
            self._began = time.monotonic()
            self._thread.start()
        return False

    def end(self) -> None:
        """The worker ends. What is being sent is sent again later, by another one."""
        self._ending.set()
        if self._thread is not None:
            self._receiver.give_up()
            self._thread.join(END_SECONDS)

    def _deliver(self) -> None:
        """All that is due, until the receiver does not take one: the others would only wait for it too."""
        try:
            with self._binder.bound(RequestScope(request_id=f"webhook-{new_id()}")):
                while not self._ending.is_set() and (alert := self._outbox.claim()) is not None:
                    if not self._sent(alert):
                        break
        except Exception as error:
            log.error("alerts could not be sent to the webhook: %s", described(error))

    def _sent(self, alert: StoredAlert) -> bool:
        self._began = time.monotonic()
        try:
            self._receiver.send(alert)
        except DeliveryFailed as failure:
            next_at = next_try(alert, self._clock())
            self._outbox.failed(alert, str(failure), next_at)
            if alert.delivery_attempts == 1 or next_at is None:
                what = "given up" if next_at is None else "tried again"
                log.warning("alert %s was not sent to the webhook, %s: %s", alert.id, what, failure)
            return False
        self._outbox.delivered(alert)
        return True
