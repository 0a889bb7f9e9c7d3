"""The connections that wait for their client: what of each is watched, and what goes on when it happens."""

from __future__ import annotations

import selectors
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from agentapp.logs import described
from agentapp.server.answering import AnsweringWorker
from agentapp.server.connection import Connection
from agentapp.server.connections import Connections, Waits
from agentapp.server.limits import LINGER_SECONDS


class WaitingLoop(AnsweringWorker):
    """The part of the main loop that is about one connection at a time."""

    _connections: Connections

    @abstractmethod
    def _receive(self, connection: Connection) -> None:
        """Something of a request has come."""

    @abstractmethod
    def _keep(self, connection: Connection) -> None:
        """The client has its answer and may send another request."""

    def _go_on(self, step: Callable[[Connection], None], connection: Connection, _: Any = None) -> None:
        """Whatever goes wrong with one connection must not end the worker, which has those of others."""
        try:
            step(connection)
        except Exception as error:
            self.log.error("a connection is closed because of an error: %s", described(error))
            self._close(connection)

    def _send_rest(self, connection: Connection) -> None:
        if not connection.send_rest(time.monotonic()):
            self._close(connection)
            return
        if connection.has_unsent:
            self._wait(connection, Waits.SENDING)
            return
        connection.release_page_slot()
        if connection.keep:
            self._keep(connection)
        else:
            self._linger(connection)

    def _linger(self, connection: Connection) -> None:
        if connection.end_answer():
            connection.deadline = time.monotonic() + LINGER_SECONDS
            self._wait(connection, Waits.TO_CLOSE)
            self._read_and_forget(connection)
        else:
            self._close(connection)

    def _read_and_forget(self, connection: Connection) -> None:
        if not connection.linger():
            self._close(connection)

    def _wait(self, connection: Connection, waits: Waits) -> None:
        if connection.waits is not waits:
            self._connections.remove(connection)
            self._connections.add(connection, waits)
        self._watch(connection, selectors.EVENT_WRITE if waits is Waits.SENDING else selectors.EVENT_READ)

    def _watch(self, connection: Connection, events: int) -> None:
        """Have the poller report these events, or none. A connection that a thread answers stays watched, so
        that most requests need no call for it.
        """
        if connection.watched == events:
            return
        if connection.watched:
            self.poller.unregister(connection.sock)
        if events:
            self.poller.register(
                connection.sock, events, partial(self._go_on, self._go_on_waiting, connection)
            )
        connection.watched = events

    def _go_on_waiting(self, connection: Connection) -> None:
        match connection.waits:
            case Waits.IDLE | Waits.RECEIVING:
                self._receive(connection)
            case Waits.SENDING:
                self._send_rest(connection)
            case Waits.TO_CLOSE:
                self._read_and_forget(connection)
            case _:  # a thread answers it: what else has come, or that the client hung up, is for later
                self._watch(connection, 0)

    def _close(self, connection: Connection) -> None:
        self._forget(connection)
        connection.close()

    def _abort(self, connection: Connection) -> None:
        self._forget(connection)
        connection.abort()

    def _forget(self, connection: Connection) -> None:
        self._connections.remove(connection)
        self._watch(connection, 0)
