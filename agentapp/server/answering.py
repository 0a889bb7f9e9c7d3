"""What a thread does with a request: have the application answer it, and write the answer."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from typing import Any

from gunicorn.http import wsgi
from gunicorn.workers.gthread import ThreadWorker

from agentapp.logs import described
from agentapp.server.answer import Answer
from agentapp.server.connection import ClientGone, Connection
from agentapp.server.limits import CLIENT, HAS_BEGUN, PAGE_SLOT, UNREADABLE
from agentapp.server.unreadable import problem_with, stand_in_for


class AnsweringWorker(ThreadWorker):  # type: ignore[misc]
    """The part of the worker that runs in its threads."""

    alive: Any

    def handle(self, connection: Connection) -> None:
        keep, is_gone = False, True
        connection.in_thread_since = time.monotonic()
        try:
            keep, is_gone = self._answer(connection), False
        except ClientGone:
            pass
        except BaseException as error:
            self.log.error("a request could not be answered: %s", described(error))
        finally:
            self.method_queue.defer(self.finish_request, connection, keep, is_gone)

    def _answer(self, connection: Connection) -> bool:
        """Whether the connection can be used for another request."""
        incoming = connection.incoming
        if connection.has_left_before_answer():
            raise ClientGone("the client did not wait for its answer")
        if incoming.error is None:
            try:
                incoming.read_body()
            except Exception as error:  # whatever gunicorn may raise for what a stranger sends
                incoming.error = error
        if incoming.error is None:
            return self.handle_request(incoming.request, connection)
        stand_in = stand_in_for(incoming, self.cfg, connection.client)
        return self.handle_request(stand_in, connection, problem_with(incoming.error))

    def _tell_begun(self, connection: Connection) -> None:
        """The turn has begun. If others wait for that, the main loop is to know at once."""
        tell = self.method_queue.defer if self.tpool.turns.waiting else self.method_queue.leave
        tell(self.note_begun, connection)

    def handle_request(
        self, request: Any, connection: Connection, problem: tuple[int, str] | None = None
    ) -> bool:
        started = datetime.now()
        answer, environ = wsgi.create(
            request,
            connection.sock,
            connection.client,
            connection.server,
            self.cfg,
            response_class=Answer,
            response_args=(connection,),
        )
        environ["wsgi.multithread"] = True
        environ[CLIENT] = answer
        if problem is not None:
            environ[UNREADABLE] = problem
        if connection.page_slot is not None:
            environ[PAGE_SLOT] = connection.page_slot
        if connection.is_turn:
            environ[HAS_BEGUN] = partial(self._tell_begun, connection)
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.alive = False
        if not self.alive or connection.must_close:
            answer.force_close()
        pieces = self.wsgi(environ, answer.start_response)
        try:
            for piece in pieces:
                answer.write(piece)
            answer.close()
        finally:
            self.log.access(answer, request, environ, datetime.now() - started)
            if hasattr(pieces, "close"):
                pieces.close()
        return not answer.should_close()
