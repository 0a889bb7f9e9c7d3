"""The log: no words of people, models or providers in it, and nobody can write a line of it."""

from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from agentapp.isolation import RequestScope, Scope, ThreadBinder
from agentapp.server.logger import OneLineLogger
from agentapp.storage.accounts import Accounts
from agentapp.storage.chats import Chats
from agentapp.storage.turns import SqlTurnStore
from agentapp.telemetry import bound_records, log_options
from agentapp.telemetry.log_lines import FIELDS, IDS, LineFormatter
from agentapp.telemetry.log_setup import TALKATIVE, set_up
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
    assert heartbeat.jobs[0].job.name in [vars(record).get("job") for record in caplog.records]
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


@pytest.mark.parametrize("line_format", ["console", "json"])
@pytest.mark.parametrize("text", FORGERIES.values(), ids=FORGERIES)
def test_whatever_is_in_a_record_it_is_one_printable_line(text: str, line_format: str) -> None:
    formatter = LineFormatter(line_format)
    plain = logging.LogRecord("x", logging.ERROR, __file__, 1, "user %s did %r", (text, 1), None)
    plain.agent = plain.route = text
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
    if line_format == "json":
        told = json.loads(formatter.format(plain))
        assert (told["event"], told["agent"]) == (f"user {text} did 1", text)
    assert "formatted before" not in line
    assert failing.exc_info is info, "other handlers get the record as it was"


def test_what_can_be_printed_is_written_as_it_is() -> None:
    assert logs.escaped('ann said: "Grüße, 你好 🙂" C:\\new') == 'ann said: "Grüße, 你好 🙂" C:\\new'
    assert logs.escaped("a\nb\x1b\u2028\ud800") == "a\\nb\\x1b\\u2028\\ud800"


@contextmanager
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if nobody had set up logging: pytest has handlers of its own."""
    loggers = [logging.getLogger(name) for name in (None, "agentapp", *TALKATIVE)]
    levels, make = [logger.level for logger in loggers], logging.getLogRecordFactory()
    for logger in (logging.root, logging.getLogger("gunicorn.error"), logging.getLogger("gunicorn.access")):
        monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    logging.setLogRecordFactory(logging.LogRecord)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        logging.setLogRecordFactory(make)


@pytest.mark.parametrize("line_format", ["console", "json"])
def test_our_log_and_gunicorns_are_written_by_the_same_formatter(
    line_format: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTAPP_LOG_FORMAT", line_format)
    with new_process(monkeypatch):
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
    if line_format == "json":
        told = [json.loads(line) for line in errors]
        loggers = ["gunicorn.error", "agentapp.web", "somebody.elses"] * len(FORGERIES)
        assert [line["logger"] for line in told[:-1]] == loggers
        assert {line["pid"] for line in told} == {os.getpid()}


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
        "import logging; from agentapp.telemetry.log_setup import set_up; set_up(); import anthropic",
        "import logging; from agentapp.telemetry.log_setup import set_up; import anthropic; set_up()",
        "import logging; from agentapp.telemetry.log_setup import set_up;"
        " logging.basicConfig(level='DEBUG'); set_up()",
    ],
    ids=["imported later", "imported before", "operator's own level"],
)
@pytest.mark.parametrize("level", ["debug", "info"])
def test_the_sdk_does_not_write_out_requests_whatever_the_environment_says(program: str, level: str) -> None:
    environ = {**os.environ, "ANTHROPIC_LOG": level, "AGENTAPP_LOG_LEVEL": level}
    names = ("anthropic._base_client", "httpx2", "httpcore2.http11", "sqlalchemy.engine")
    shown = f"print([logging.getLogger(name).getEffectiveLevel() for name in {names}])"
    command = [sys.executable, "-c", f"{program}; {shown}"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "[30, 30, 30, 30]\n"


def test_a_higher_level_of_the_operators_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("anthropic"), "level", logging.ERROR)
    set_up()
    assert logging.getLogger("anthropic").level == logging.ERROR


def test_a_set_up_of_the_operators_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = logging.NullHandler()
    monkeypatch.setattr(logging.root, "handlers", [theirs])
    monkeypatch.setenv("AGENTAPP_LOG_LEVEL", "debug")
    before = logging.root.level, logging.getLogger("agentapp").level
    set_up()
    assert logging.root.handlers == [theirs]
    assert (logging.root.level, logging.getLogger("agentapp").level) == before


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["our debug", "our info", "our warning", "their warning"]),
        ("info", ["our info", "our warning", "their warning"]),
        ("warning", ["our warning", "their warning"]),
        ("error", []),
    ],
)
def test_the_level_is_for_our_lines_and_libraries_have_warnings_only(
    level: str,
    written: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AGENTAPP_LOG_LEVEL", level)
    monkeypatch.setenv("AGENTAPP_LOG_FORMAT", "json")
    with new_process(monkeypatch):
        set_up()
        for whose, name in (("our", "agentapp.web"), ("their", "sqlalchemy.engine")):
            for grave in ("debug", "info", "warning"):
                logging.getLogger(name).log(logging.getLevelNamesMapping()[grave.upper()], f"{whose} {grave}")
    assert [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()] == written


def test_a_terminal_has_lines_for_people_and_a_file_for_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal, expected in ((True, "console"), (False, "json")):
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda answer=is_terminal: answer))
        assert log_options.load({}).format == expected
        assert log_options.load({"AGENTAPP_LOG_FORMAT": "json"}).format == "json"


@pytest.mark.parametrize(
    ("command", "variable", "bad"),
    [
        ("agentapp user list", "AGENTAPP_LOG_LEVEL", "all"),
        ("agentapp serve", "AGENTAPP_LOG_FORMAT", "xml"),
        ("python wsgi.py", "AGENTAPP_LOG_LEVEL", "INFO"),
        ("gunicorn --check-config wsgi:app", "AGENTAPP_LOG_FORMAT", "text"),
    ],
)
def test_a_bad_setting_of_the_log_stops_every_start_and_is_named(
    command: str, variable: str, bad: str, tmp_path: Path
) -> None:
    program, *arguments = command.split()
    environ = {**os.environ, variable: bad, "AGENTAPP_INSTANCE": str(tmp_path / "instance")}
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        env=environ,
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.startswith(f"agentapp: {variable}: must be one of ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "instance").exists()


# What a line has


def test_every_field_of_a_line_is_in_the_list_and_in_the_documentation() -> None:
    """One that is not in the list would be left out in silence."""
    given = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log."):
                given |= names_of_fields(path, [each.value for each in node.keywords if each.arg == "extra"])
    page = (PACKAGE.parent / "docs/observability.md").read_text()
    assert given
    assert given <= {*FIELDS, *IDS}
    assert not [name for name in (*FIELDS, *IDS) if f"`{name}`" not in page]


def names_of_fields(path: Path, values: list[ast.expr]) -> set[str]:
    """The keys of a dict, or of the dicts in its file that have this name."""
    found = set()
    for value in values:
        if isinstance(value, ast.Dict):
            found |= {key.value for key in value.keys if isinstance(key, ast.Constant)}
        elif isinstance(value, ast.Name):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == value.id:
                    found |= names_of_fields(path, [node.value])
    return {str(name) for name in found}


def test_what_a_library_puts_into_a_record_is_not_written() -> None:
    record = logging.makeLogRecord({"msg": "sent", "body": MARK, "headers": {"x-api-key": MARK}})
    assert MARK not in LineFormatter("json").format(record)


def test_a_line_has_the_ids_of_what_its_thread_works_for_and_of_nothing_before(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of whichever application, also of what was made before the log was set up by a second one."""
    monkeypatch.setenv("AGENTAPP_LOG_FORMAT", "json")
    with new_process(monkeypatch):
        set_up()
        binders = ThreadBinder(), ThreadBinder()
        for binder in binders:
            bound_records.follow(binder)
        set_up()
        log = logging.getLogger("agentapp.web")
        turn = Scope(request_id="r", tenant_id="t", user_id="u", session_id="s").of_turn("n")
        with binders[0].bound(turn):
            log.info("in a turn")
            log.info("of another request", extra={"request_id": "q"})
            thread = threading.Thread(target=lambda: log.info("in a thread of its own"))
            thread.start()
            thread.join()
        with binders[1].bound(RequestScope(request_id="p")):
            log.info("in a request of the other")
        log.info("after them")
    ids = [
        {name: value for name, value in json.loads(line).items() if name in IDS}
        for line in capfd.readouterr().err.splitlines()
    ]
    of_turn = {"request_id": "r", "tenant_id": "t", "user_id": "u", "session_id": "s", "turn_id": "n"}
    assert ids == [of_turn, {**of_turn, "request_id": "q"}, {}, {"request_id": "p"}, {}]
