"""gunicorn's worker, with the life cycle of our app tied to its own."""

from __future__ import annotations

import os
import time
from typing import Any

from agentapp.server.turn_loop import TurnLoop


class TurnWorker(TurnLoop):
    """When it is to end, its turns are drained; at its end it also waits for turns that nobody reads."""

    _alive = True

    @property
    def alive(self) -> bool:
        return self._alive

    @alive.setter
    def alive(self, value: bool) -> None:
        """gunicorn sets this to False, mostly in a signal handler, to have the worker end."""
        self._alive = value
        if not value:
            self._drain(self.cfg.graceful_timeout)

    def is_parent_alive(self) -> bool:
        is_alive = bool(super().is_parent_alive())
        if not is_alive:
            self._drain(self.cfg.graceful_timeout)
        return is_alive

    def run(self) -> None:
        app = self._app()
        if app is not None:
            settings, extensions = app.settings, self.wsgi.extensions
            self.configure(
                extensions["agentapp.user_of"],
                app.pages.try_to_take,
                half_sent_address=settings.half_sent_address,
                streams_user=settings.streams_user,
                trusted_proxies=settings.trusted_proxies,
            )
            self.share_connections(app.seats.note_connections, app.seats.fewest_connections)
            self.configure_turns(
                app.turns.slots.most_turns,
                extensions["agentapp.tenant_of"],
                extensions["agentapp.busy_answer"],
                extensions["agentapp.note_busy"],
            )
        super().run()
        while not self._drain(self.cfg.graceful_timeout):
            self.notify()
            time.sleep(0.05)
        if app is not None:
            app.close()
        if self.is_answering:
            os._exit(0)  # threads that write to a client that does not read would be waited for

    def interrupt(self) -> None:
        """The server is to end at once: turns that still run are stored as interrupted."""
        while not self._drain(0):
            time.sleep(0.02)

    def _drain(self, grace: float) -> bool:
        app = self._app()
        return bool(app is None or app.drain(grace))

    def _app(self) -> Any:
        """What `create_app` left for us; None if the application is not loaded, or could not be."""
        return getattr(getattr(self, "wsgi", None), "extensions", {}).get("agentapp")
