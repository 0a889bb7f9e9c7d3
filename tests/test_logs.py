"""The log: no words of people, models or providers in it, and nobody can write a line of it."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask, Request
from gunicorn.config import Config
from werkzeug.test import EnvironBuilder

from agentapp import logs
from agentapp.agents.providers.demo.provider import DemoProvider
from agentapp.config import Settings
from agentapp.server.logger import OneLineLogger
from agentapp.storage.accounts import Accounts
from agentapp.storage.chats import Chats
from agentapp.storage.turns import SqlTurnStore
from agentapp.web.parts import Parts
from tests.support.databases import migrated
from tests.support.users import JSON, PAGE, Person, csrf_of, person

MARK = "the-private-words-of-ann"
PACKAGE = Path(__file__).parents[1] / "agentapp"
FORGERIES = {
    "line": "x\n2026-01-01 [1] [INFO] all is well",
    "return": "x\r2026-01-01 [1] [INFO] all is well",
    "next line": "x\x85y",
    "separators": "x\u2028y\u2029z",
    "colours": "\x1b[2K\x1b[31mred",
    "bell and NUL": "\a\0",
    "backwards": "\u202eevil",
    "half a character": "\ud800",
    "tab and form feed": "\t\v\f",
    "delete": "\x7f\x9b31m",
}


# What is logged


def raising(error: Callable[[], Exception]) -> Callable[..., Any]:
    def raises(*args: object, **kwargs: object) -> Any:
        raise error()

    return raises


@pytest.mark.parametrize(
    ("where", "method"),
    [
        (SqlTurnStore, "chat"),
        (DemoProvider, "stream"),
        (Chats, "page"),
        (Accounts, "sign_in"),
    ],
    ids=["storing", "model", "list", "sign-in"],
)
def test_no_error_of_ours_brings_what_people_write_into_the_log(
    app: Flask,
    ann: Person,
    where: type,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    chat = ann.new_chat()
    ann.ask(chat, f"before {MARK}")
    with monkeypatch.context() as patch:
        assert hasattr(where, method)
        patch.setattr(where, method, raising(lambda: ValueError(f"cannot do {MARK}")))
        ann.send(chat, MARK, idempotency_key=MARK)
        ann.browser.get(f"/chat?q={MARK}", headers=JSON)
        ann.post(f"/chat/{chat}/rename", title=MARK)
        browser = app.test_client()
        csrf = csrf_of(browser.get("/login", headers=PAGE).text)
        browser.post("/login", data={"csrf_token": csrf, "username": MARK, "password": MARK})
    assert "ValueError at " in caplog.text
    assert MARK not in caplog.text


def test_a_row_that_postgresql_refuses_is_not_quoted(
    settings: Settings, make_app: Callable[..., Flask], caplog: pytest.LogCaptureFixture
) -> None:
    """Its message is two lines long, and the second one has the values of the row."""
    with migrated("postgresql", settings) as url:
        app = make_app(wanted=replace(settings, database_url=url))
        ann = person(app, "ann")
        parts: Parts = app.extensions["agentapp"]
        with parts.db.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE messages ADD CHECK (length(content) < 5)")
        answer = ann.send(ann.new_chat(), MARK)
        parts.close()
    assert answer.status_code == 500
    assert "IntegrityError at " in caplog.text
    assert MARK not in caplog.text


def test_the_heartbeat_tells_the_job_and_not_the_words(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: told.set()  # type: ignore[method-assign]
    logger = logging.getLogger("agentapp.turns.heartbeat")
    logger.addHandler(handler)
    heartbeat = parts.turns.heartbeat
    monkeypatch.setattr(type(heartbeat.jobs[0].job), "run", raising(lambda: ValueError(MARK)))
    try:
        parts.start(threads=2)
        assert told.wait(10)
        parts.close()
    finally:
        logger.removeHandler(handler)
    assert heartbeat.jobs[0].job.name in caplog.text
    assert "ValueError at " in caplog.text
    assert MARK not in caplog.text


def test_no_module_logs_an_exception_with_its_words() -> None:
    """`described` is for that. A handler of somebody else's would write out all of an ``exc_info``."""
    for path in PACKAGE.rglob("*.py"):
        if path.is_relative_to(PACKAGE / "audit"):  # which runs in other people's programs
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                what = ast.unparse(node.func)
                assert not what.endswith(("log.exception", "logger.exception")), f"{path}:{node.lineno}"
                assert "exc_info" not in [keyword.arg for keyword in node.keywords], f"{path}:{node.lineno}"


def test_a_description_is_the_kinds_and_the_places_of_an_error_and_its_causes() -> None:
    def fail() -> None:
        try:
            int(MARK)
        except ValueError as error:
            raise RuntimeError(MARK) from error

    with pytest.raises(RuntimeError) as caught:
        fail()
    told = logs.described(caught.value)
    assert told.startswith(f"RuntimeError at {__file__}:")
    assert " in fail < " in told
    assert f"; because of ValueError at {__file__}:" in told
    assert MARK not in told


def test_a_recursion_and_a_circle_of_causes_are_described_in_a_line() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as caught:
        deeper()
    caught.value.__cause__ = ValueError()
    caught.value.__cause__.__cause__ = caught.value
    assert len(logs.described(caught.value)) < 10_000


# How it is written


@pytest.mark.parametrize("text", FORGERIES.values(), ids=FORGERIES)
def test_whatever_is_in_a_record_it_is_one_printable_line(text: str) -> None:
    formatter = logs.OneLineFormatter(logs.FORMAT, logs.DATE_FORMAT)
    plain = logging.LogRecord("x", logging.ERROR, __file__, 1, "user %s did %r", (text, 1), None)
    with pytest.raises(ValueError) as caught:
        raise ValueError(text)
    info = (ValueError, caught.value, caught.value.__traceback__)
    failing = logging.LogRecord(text, logging.ERROR, __file__, 1, text.replace("%", "%%"), (), info)
    failing.exc_text = f"formatted before by another handler: {text}"
    for record in (plain, failing):
        line = formatter.format(record)
        assert line.isprintable()
        assert line.encode()
    assert "ValueError at " in line
    assert "formatted before" not in line
    assert failing.exc_info is info, "other handlers get the record as it was"


def test_what_can_be_printed_is_written_as_it_is() -> None:
    assert logs.escaped('ann said: "Grüße, 你好 🙂" C:\\new') == 'ann said: "Grüße, 你好 🙂" C:\\new'
    assert logs.escaped("a\nb\x1b\u2028\ud800") == "a\\nb\\x1b\\u2028\\ud800"


def test_our_log_and_gunicorns_are_written_by_the_same_formatter(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # As in a new process: pytest has handlers of its own.
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    cfg = Config()
    cfg.set("errorlog", "-")
    cfg.set("accesslog", "-")
    gunicorn = OneLineLogger(cfg)
    try:
        gunicorn.setup(cfg)  # as SIGHUP does
        for text in FORGERIES.values():
            gunicorn.error("cannot read %s", text)
            logging.getLogger("agentapp.web").error("cannot do %s", text)
            logging.getLogger("somebody.elses").warning(text)
            gunicorn.access(
                SimpleNamespace(status="200 OK", sent=1, headers=[]),
                SimpleNamespace(headers=[("User-Agent", text)]),
                {"REQUEST_METHOD": "GET", "RAW_URI": f"/{text}", "SERVER_PROTOCOL": text},
                SimpleNamespace(seconds=0, microseconds=0),
            )
        thread = threading.Thread(target=raising(lambda: ValueError(MARK)), name="a\nb")
        thread.start()
        thread.join()
    finally:
        for logger in (gunicorn.error_log, gunicorn.access_log):
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
    access, errors = (text.removesuffix("\n").split("\n") for text in capfd.readouterr())
    assert (len(access), len(errors)) == (len(FORGERIES), 3 * len(FORGERIES) + 1)
    assert all(line.isprintable() for line in access + errors)
    assert "thread a\\nb ended with ValueError at " in errors[-1]
    assert MARK not in errors[-1]


@pytest.mark.parametrize(
    "wanted",
    [
        Config().access_log_format,
        "%(r)s %(m)s %(U)s %(q)s %(f)s",
        "%({referer}i)s %({x-original-uri}i)s %({cookie}i)s",
        "%({location}o)s %({set-cookie}o)s",
        "%({raw_uri}e)s %({query_string}e)s %({http_referer}e)s %({http_cookie}e)s %({werkzeug.request}e)s",
    ],
    ids=["gunicorn's default", "letters", "headers", "headers of the answer", "environment"],
)
def test_the_access_log_has_no_query_and_no_cookie(
    wanted: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("gunicorn.error", "gunicorn.access"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [caplog.handler])
    cfg = Config()
    cfg.set("accesslog", "-")
    cfg.set("access_log_format", wanted)
    gunicorn = OneLineLogger(cfg)
    address = f"/chat?q={MARK}?{MARK} {MARK}"
    headers = {"Referer": f"https://here{address}", "Cookie": f"agentapp={MARK}", "X-Original-URI": address}
    environ = EnvironBuilder(path="/chat", query_string=f"q={MARK}?{MARK}", headers=headers).get_environ()
    environ |= {"RAW_URI": f"/chat?q={MARK}?{MARK}", "werkzeug.request": Request(environ)}
    answer = [("Location", f"/login?next={address}"), ("Set-Cookie", f"agentapp={MARK}; Path=/")]
    gunicorn.access(
        SimpleNamespace(status="302 FOUND", sent=7, headers=answer),
        SimpleNamespace(headers=list(headers.items())),
        environ,
        timedelta(milliseconds=3),
    )
    (line,) = caplog.messages
    assert MARK not in line
    if "%(r)s" in wanted:
        assert "GET /chat HTTP/1.1" in line
    if "%(s)s" in wanted:
        assert '" 302 7 "https://here/chat" ' in line


@pytest.mark.parametrize(
    "program",
    [
        "import logging; from agentapp import logs; logs.set_up(); import anthropic",
        "import logging; from agentapp import logs; import anthropic; logs.set_up()",
        "import logging; from agentapp import logs; logging.basicConfig(level='DEBUG'); logs.set_up()",
    ],
    ids=["imported later", "imported before", "operator's own level"],
)
@pytest.mark.parametrize("level", ["debug", "info"])
def test_the_sdk_does_not_write_out_requests_whatever_the_environment_says(program: str, level: str) -> None:
    environ = {**os.environ, "ANTHROPIC_LOG": level}
    names = ("anthropic._base_client", "httpx2", "httpcore2.http11")
    shown = f"print([logging.getLogger(name).getEffectiveLevel() for name in {names}])"
    command = [sys.executable, "-c", f"{program}; {shown}"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "[30, 30, 30]\n"


def test_a_higher_level_of_the_operators_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("anthropic"), "level", logging.ERROR)
    logs.set_up()
    assert logging.getLogger("anthropic").level == logging.ERROR


def test_a_set_up_of_the_operators_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = logging.NullHandler()
    monkeypatch.setattr(logging.root, "handlers", [theirs])
    logs.set_up()
    assert logging.root.handlers == [theirs]
