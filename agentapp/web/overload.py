"""The answer to a request that finds no place in any queue of the server, which sends it without a thread."""

from __future__ import annotations

from flask import Flask, Response, render_template

from agentapp.errors import Busy
from agentapp.web.headers import add_headers
from agentapp.web.parts import Parts, parts
from agentapp.web.problems import problem_answer, problem_of


def init_app(app: Flask) -> None:
    """It is the same for everybody. The server keeps one for scripts and one for people, for each number of
    seconds after which they are to come back. ``most`` is the limit that they have met.
    """

    def busy_answer(wants_page: bool, most: int, retry_after: int) -> bytes:
        with app.test_request_context(headers={"Accept": "application/json"}):
            return _as_bytes(_answer(wants_page, parts().pages.busy(most, retry_after)))

    def note_busy(tenant_id: str) -> None:
        """The answers are kept, so each that is sent is counted here."""
        own: Parts = app.extensions["agentapp"]
        own.telemetry.count("refusals_total", tenant_id=tenant_id, code=Busy.code, scope="server")

    app.extensions["agentapp.busy_answer"] = busy_answer
    app.extensions["agentapp.note_busy"] = note_busy


def _answer(wants_page: bool, refusal: Busy) -> Response:
    problem = problem_of(refusal)
    answer = problem_answer(problem)
    if wants_page:
        # Not one of our other pages: they have a token in them that is for one person alone.
        answer.data = render_template("busy.html", problem=problem)
        answer.mimetype = "text/html"
    add_headers(answer)
    del answer.headers["X-Request-ID"]
    return answer


def _as_bytes(answer: Response) -> bytes:
    lines = [f"HTTP/1.1 {answer.status}", "Server: gunicorn", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    return "\r\n".join((*lines, "", "")).encode("latin-1") + answer.get_data()
