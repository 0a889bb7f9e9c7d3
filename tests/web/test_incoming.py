"""Whatever is sent, the answer is never a 5xx, and what is refused leaves nothing behind."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote_from_bytes, urlencode

import pytest
from flask import Flask
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from agentapp.config import Settings
from agentapp.isolation import new_id
from agentapp.web.incoming import MAX_BODY_BYTES, MAX_KEY_CHARS, MAX_MESSAGE_CHARS, MAX_TITLE_CHARS
from agentapp.web.parts import Parts
from tests.support.app_inspection import FIELDS, Page, changing, dump, path_of, routes
from tests.support.users import EVENTS, JSON, PAGE, Person, events_of

DEEP = 80_000
BAD_BYTES = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"ok \xfe\xff ok", b"\xf5\x80\x80\x80"]
MULTIPART = "multipart/form-data; boundary=edge"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def chat(ann: Person) -> str:
    return ann.new_chat()


class Sender:
    """Posts as Ann, with the token in a header, so that a body may be anything at all."""

    def __init__(self, app: Flask, ann: Person, chat: str) -> None:
        self._app, self._ann, self._chat = app, ann, chat

    def paths(self) -> Iterator[tuple[str, str]]:
        """Every address that takes a body, with its endpoint; signing out comes last."""
        rules = [rule for rule, _ in changing(self._app)]
        for rule in sorted(rules, key=lambda rule: rule.endpoint == "auth.logout"):
            yield path_of(self._app, rule, session_id=self._chat), rule.endpoint

    def fields(self) -> Iterator[tuple[str, str, dict[str, str]]]:
        """Every address with each field it takes, and a good body."""
        for path, endpoint in self.paths():
            for name in FIELDS.get(endpoint, {}):
                yield path, name, FIELDS[endpoint]

    def post(
        self,
        path: str,
        body: bytes,
        content_type: str | None = FORM,
        accept: dict[str, str] = JSON,
        **more: Any,
    ) -> TestResponse:
        headers = {"X-CSRFToken": self._ann.csrf, **accept}
        return self._ann.browser.post(path, data=body, content_type=content_type, headers=headers, **more)

    def post_chunked(self, path: str, body: bytes) -> TestResponse:
        """Without a length, as gunicorn hands on a body that came in chunks."""
        return self._ann.browser.post(
            path,
            input_stream=io.BytesIO(body),
            content_type=FORM,
            headers={**JSON, "X-CSRFToken": self._ann.csrf, "Transfer-Encoding": "chunked"},
            environ_overrides={"wsgi.input_terminated": True},
        )


@pytest.fixture
def sender(app: Flask, ann: Person, chat: str) -> Sender:
    return Sender(app, ann, chat)


def multipart(fields: dict[str, bytes]) -> bytes:
    parts = [
        b'--edge\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value)
        for name, value in fields.items()
    ]
    return b"".join(parts) + b"--edge--\r\n"


def encodings(name: str, value: bytes, good: dict[str, str]) -> Iterator[tuple[bytes, str]]:
    """The body with this value in this field, percent-encoded, raw, as multipart and as JSON."""
    rest = {key: text.encode() for key, text in good.items() if key != name}
    yield urlencode({**rest, name: value}).encode(), FORM
    if not set(value) & set(b"&=+%;"):
        yield urlencode(rest).encode() + f"&{name}=".encode() + value, FORM
    yield multipart({**rest, name: value}), MULTIPART
    pairs = [b'"%s": "%s"' % (key.encode(), text) for key, text in {**rest, name: value}.items()]
    yield b"{" + b", ".join(pairs) + b"}", "application/json"


def expect_refusal(answer: TestResponse, name: str, what: object) -> None:
    told = f"{answer.request.path} {name}={str(what)[:40]}: {answer.status_code} {answer.text[:200]}"
    assert answer.status_code in (400, 413, 422), told
    assert answer.mimetype == "application/problem+json", told
    statuses = {"bad-request": 400, "message-too-long": 413, "invalid-message": 422}
    assert statuses[answer.json["code"]] == answer.status_code, told


def test_bytes_that_are_not_utf8_are_refused_in_every_field(settings: Settings, sender: Sender) -> None:
    before = dump(settings)
    for path, name, good in sender.fields():
        for value in BAD_BYTES:
            for body, kind in encodings(name, value, good):
                expect_refusal(sender.post(path, body, kind), name, value)
    assert dump(settings) == before


def test_bytes_that_are_not_utf8_are_refused_in_every_address(app: Flask, ann: Person, chat: str) -> None:
    for rule, _ in routes(app, "GET"):
        if rule.endpoint in ("health.livez", "static"):
            continue
        path = path_of(app, rule, session_id=chat)
        for raw in (b"%ff", b"%c3", b"%ed%a0%80", b"a%00b%80"):
            answer = ann.browser.get(f"{path}?q={raw.decode()}", headers=JSON)
            assert (answer.status_code, answer.json["code"]) == (400, "bad-request"), path
        raw_bytes = {"QUERY_STRING": "q=\xff"}
        assert ann.browser.get(path, headers=JSON, environ_overrides=raw_bytes).status_code == 400


def test_a_nul_is_refused_in_every_field(settings: Settings, sender: Sender) -> None:
    before = dump(settings)
    for path, name, good in sender.fields():
        rest = {key: text for key, text in good.items() if key != name}
        for body, kind in [
            (urlencode({**rest, name: "a\0b"}).encode(), FORM),
            (multipart({**{k: v.encode() for k, v in rest.items()}, name: b"a\0b"}), MULTIPART),
            (json.dumps({**rest, name: "a\0b"}).encode(), "application/json"),
        ]:
            expect_refusal(sender.post(path, body, kind), name, "NUL")
    assert dump(settings) == before


def test_half_a_surrogate_pair_is_refused_in_every_field(settings: Settings, sender: Sender) -> None:
    before = dump(settings)
    for path, name, good in sender.fields():
        for value in ("\ud800", "a\udfff", "\udc80\ud800"):
            body = json.dumps({**good, name: value}).encode()
            expect_refusal(sender.post(path, body, "application/json"), name, ascii(value))
    assert dump(settings) == before


def test_anything_but_text_is_refused_in_every_field(settings: Settings, sender: Sender) -> None:
    before = dump(settings)
    values: list[Any] = [None, True, 0, 1.5, [], ["hello"], {}, {"a": "b"}, [[[]]], 10**400]
    for path, name, good in sender.fields():
        for value in values:
            body = json.dumps({**good, name: value}).encode()
            expect_refusal(sender.post(path, body, "application/json"), name, value)
    assert dump(settings) == before


def test_what_is_too_long_is_refused_in_every_field(settings: Settings, sender: Sender) -> None:
    before = dump(settings)
    for path, name, good in sender.fields():
        for body, kind in encodings(name, b"x" * 40_000, good):
            expect_refusal(sender.post(path, body, kind), name, "40,000 characters")
    assert dump(settings) == before


def test_a_body_of_two_mebibytes_is_413_everywhere(settings: Settings, sender: Sender) -> None:
    before = dump(settings)
    huge = b"message=" + b"x" * (2 * MAX_BODY_BYTES)
    for path, _ in sender.paths():
        for kind in (FORM, MULTIPART, "application/json", "text/plain"):
            answer = sender.post(path, huge, kind)
            assert (answer.status_code, answer.json["code"]) == (413, "message-too-long"), path
        answer = sender.post_chunked(path, huge)
        assert (answer.status_code, answer.json["code"]) == (413, "message-too-long"), path
    assert dump(settings) == before


def test_fields_that_are_missing_are_named(sender: Sender, chat: str) -> None:
    for path, name in [
        ("/login", "username"),
        ("/login", "password"),
        ("/setup", "username"),
        ("/theme", "theme"),
        (f"/chat/{chat}/rename", "title"),
    ]:
        endpoint = next(end for each, end in sender.paths() if each == path)
        rest = {key: value for key, value in FIELDS[endpoint].items() if key != name}
        for body, kind in [
            (urlencode(rest).encode(), FORM),
            (json.dumps(rest).encode(), "application/json"),
            (multipart({k: v.encode() for k, v in rest.items()}), MULTIPART),
        ]:
            answer = sender.post(path, body, kind)
            assert (answer.status_code, answer.json["code"]) == (400, "bad-request")
            assert name in answer.json["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'message': 'hi'}",
        b'{"message": }',
        b"hello",
        b"null",
        b"[]",
        b'"text"',
        b"3",
        b'["message"]',
        b"NaN",
        b'{"message": "a\nb"}',
        b"\xef\xbb\xbf{}",
        b'{"message": "\\u12"}',
        b'{"message": "\\x41"}',
        b'{"message":' + b"1" * 5000 + b"}",
        b"[" * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        b'{"message":' + b"[" * DEEP + b"]" * DEEP + b"}",
        "{}".encode("utf-16"),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_json_that_is_none_is_refused(settings: Settings, sender: Sender, chat: str, body: bytes) -> None:
    before = dump(settings)
    for path in (f"/chat/{chat}/messages", f"/chat/{chat}/rename", "/login", "/theme"):
        for accept in (JSON, PAGE, EVENTS):
            answer = sender.post(path, body, "application/json", accept)
            assert answer.status_code in (400, 422), f"{path}: {answer.status_code} {answer.text[:100]}"
    assert dump(settings) == before


def test_a_body_that_says_it_is_something_else_holds_no_fields(
    settings: Settings, sender: Sender, chat: str
) -> None:
    before = dump(settings)
    bodies = [b"message=hello", b'{"message": "hello"}', multipart({"message": b"hello"})]
    kinds = [
        "text/plain",
        "application/octet-stream",
        "",
        None,
        "nonsense",
        "application/xml",
        ";;;",
        "a/b; c",
    ]
    kinds += [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "x" * 999,
    ]
    kinds += ["multipart/mixed; boundary=edge", "\xff/\xfe"]
    for body in bodies:
        for kind in kinds:
            answer = sender.post(f"/chat/{chat}/messages", body, kind)
            assert (answer.status_code, answer.json["code"]) == (422, "invalid-message"), (body, kind)
    assert dump(settings) == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--edge",
        b"--edge\r\n\r\n",
        b"--edge\r\n\r\nno disposition\r\n--edge--\r\n",
        b"--edge\r\nContent-Disposition: form-data\r\n\r\nno name\r\n--edge--\r\n",
        b'--edge\r\nContent-Disposition: form-data; name="message"\r\n\r\nnever ends',
        b'--edge\r\nContent-Disposition: form-data; name="message"; filename="a"\r\n\r\nx\r\n--edge--\r\n',
        b'--edge\r\nContent-Disposition: form-data; name="message"; filename="../../a"\r\n\r\nx\r\n--edge--',
        b"--edge\r\n" + b"x" * 70_000,
        b"".join(
            b'--edge\r\nContent-Disposition: form-data; name="f%d"\r\n\r\nx\r\n' % n for n in range(1500)
        )
        + b"--edge--\r\n",
    ],
    ids=lambda body: repr(body[:60]),
)
def test_a_malformed_multipart_body_is_refused(
    settings: Settings, sender: Sender, chat: str, body: bytes
) -> None:
    before = dump(settings)
    answer = sender.post(f"/chat/{chat}/messages", body, MULTIPART)
    assert answer.status_code in (400, 413, 422)
    assert dump(settings) == before


def test_of_a_field_sent_twice_the_first_counts_in_forms(sender: Sender, ann: Person, chat: str) -> None:
    assert sender.post(f"/chat/{chat}/rename", b"title=first&title=second").status_code == 303
    assert ann.get(f"/chat/{chat}/export.json").json["session"]["title"] == "first"
    twice = b'{"title": "first", "title": "second"}'
    assert sender.post(f"/chat/{chat}/rename", twice, "application/json").status_code == 303


def test_a_false_content_length_is_no_server_error(settings: Settings, sender: Sender, chat: str) -> None:
    before = dump(settings)
    for length in ("abc", "-1", "1e3", "99999999999999999999", "5", "0", "", "1048577", "٣"):
        false = {"CONTENT_LENGTH": length}
        answer = sender.post(f"/chat/{chat}/messages", b"message=", environ_overrides=false)
        assert answer.status_code in (400, 413, 422), length
    assert dump(settings) == before


@pytest.mark.parametrize("terminated", [{}, {"wsgi.input_terminated": True}], ids=["any server", "gunicorn"])
def test_a_body_that_broke_off_is_refused(
    settings: Settings, sender: Sender, chat: str, terminated: dict[str, Any]
) -> None:
    before = dump(settings)
    cut = {"CONTENT_LENGTH": "500", **terminated}
    answer = sender.post(f"/chat/{chat}/messages", b"message=hello", environ_overrides=cut)
    assert (answer.status_code, answer.json["code"]) == (400, "bad-request")
    assert dump(settings) == before


def test_a_body_in_chunks_is_taken(sender: Sender, chat: str) -> None:
    answer = sender.post_chunked(f"/chat/{chat}/messages", b"message=hello+there")
    assert answer.status_code == 200


ACCEPTS = [
    "", "*", "*/*", "a", "/", ";q=1", "text/html;q=nan", "text/html;q=-1", "text/html;q=1e400", ",,,,",
    "application/json;q=0", "*/*;q=0", "text/html;level=1", "\xff\xfe", "x" * 8000, "a/b," * 2000,
    "application/problem+json", "text/event-stream;q=0.1, application/json;q=0.0001", "TEXT/HTML", "a/b",
]  # fmt: skip


def test_any_accept_header_gets_an_answer(ann: Person, chat: str) -> None:
    kinds = ("text/html", "application/json", "application/problem+json", "text/event-stream")
    for accept in ACCEPTS:
        headers = {"Accept": accept}
        for answer in (
            ann.send(chat, "hello", headers),
            ann.send(chat, "", headers),
            ann.browser.get(f"/chat/{chat}", headers=headers),
            ann.browser.get("/chat/absent", headers=headers),
        ):
            answer.get_data()
            assert answer.status_code < 500, accept
            assert answer.mimetype in kinds


def test_what_a_script_usually_accepts_is_understood(ann: Person, chat: str) -> None:
    for accept, kind in {
        "application/json": "application/json",
        "application/json, text/plain, */*": "application/json",
        "application/json;q=0.9, text/html;q=0.1": "application/json",
        "text/event-stream": "text/event-stream",
        "text/event-stream, */*;q=0.1": "text/event-stream",
    }.items():
        answer = ann.send(chat, "hello", {"Accept": accept})
        answer.get_data()
        assert (answer.status_code, answer.mimetype) == (200, kind), accept
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
    for accept in (browser, "text/html", "*/*"):
        assert ann.send(chat, "hello", {"Accept": accept}).status_code == 303


PAGES = [
    "0",
    "-1",
    "1e9",
    "abc",
    "",
    "1000000",
    "9" * 5000,
    "1.5",
    " 1",
    "+1",
    "１",
    "²",
    "0x1",
    "1\0",
    "None",
]


def test_a_page_that_is_no_number_from_1_on_is_refused(ann: Person) -> None:
    for page in PAGES:
        answer = ann.browser.get("/chat", query_string={"page": page}, headers=JSON)
        assert (answer.status_code, answer.json["code"]) == (400, "bad-request"), page
        assert ann.browser.get("/chat", query_string={"page": page}, headers=PAGE).status_code == 400


EVENT_NUMBERS = ["-1", "1e9", "abc", "1000000000", "9" * 5000, "1.5", " 1", "+1", "１", "²", "0x1", "None"]


def test_the_number_of_an_event_that_is_none_is_refused(ann: Person, chat: str) -> None:
    turn = ann.ask(chat, "hello")["turn_id"]
    path = f"/chat/{chat}/turns/{turn}/events"
    for number in EVENT_NUMBERS:
        asked = [ann.browser.get(path, query_string={"after": number}, headers=EVENTS)]
        with suppress(UnicodeEncodeError):
            number.encode("latin-1")
            asked.append(ann.browser.get(path, headers={**EVENTS, "Last-Event-ID": number}))
        for answer in asked:
            assert (answer.status_code, answer.json["code"]) == (400, "bad-request"), number


def test_of_an_answer_that_is_over_everything_after_any_number_is_told(ann: Person, chat: str) -> None:
    told = ann.stream(chat, "hello")
    path = f"/chat/{chat}/turns/{told[0]['turn_id']}/events"
    for number in (*range(len(told) + 1), 999_999_999):
        by_address = ann.browser.get(path, query_string={"after": str(number)}, headers=EVENTS)
        by_header = ann.browser.get(path, headers={**EVENTS, "Last-Event-ID": str(number)})
        assert events_of(by_address.text) == events_of(by_header.text) == told[number:]


def test_a_page_after_the_last_is_empty(ann: Person) -> None:
    for page in ("2", "007", "999999"):
        answer = ann.get(f"/chat?page={page}")
        assert answer.status_code == 200
        assert "No more chats" in answer.text


def test_a_search_for_anything_is_answered_or_refused(ann: Person, chat: str) -> None:
    for words, status in {
        "x" * 200: 200, "x" * 201: 400, "a\0b": 400, "%": 200, "'": 200, '"><script>': 200, "💥" * 200: 200,
        " ": 200, "\n": 200, "\\": 200, "": 200,
    }.items():  # fmt: skip
        answer = ann.browser.get("/chat", query_string={"q": words}, headers=PAGE)
        assert answer.status_code == status, words[:10]
        assert "<script>" not in answer.text


ODD_IDS = [
    "%00", "%ff", "a", "..", "%2e%2e", "..%2f..%2fetc", "x" * 65, "x" * 8000, "%0a", "a b", "%F0%9F%92%A5",
    "A" * 21 + "%0A", "A" * 22 + "%00", "A" * 21 + "%ff", "-" * 22, "null", "'" * 20, "A" * 21 + "é",
]  # fmt: skip


def test_ids_that_cannot_be_any_are_absent(app: Flask, ann: Person, settings: Settings) -> None:
    before = dump(settings)
    for rule, method in routes(app):
        if "session_id" not in rule.arguments or method == "OPTIONS":
            continue
        pattern = path_of(app, rule, session_id="S" * 22)
        for odd in ODD_IDS:
            path = pattern.replace("S" * 22, odd)
            body = {"csrf_token": ann.csrf, **FIELDS.get(rule.endpoint, {})} if method == "POST" else None
            answer = ann.browser.open(path, method=method, data=body, headers=JSON)
            assert answer.status_code in (404, 405), f"{method} {path}"
    assert dump(settings) == before


ODD_PATHS = [
    "/%00", "/%ff", "/static/%00", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static/%ff", "/static/",
    "/static/" + "x" * 5000, "/chat/", "/chat//", "/" + "a/" * 3000, "/é", "/%0d%0aX: y",
]  # fmt: skip


def test_odd_addresses_are_absent(ann: Person) -> None:
    for path in ODD_PATHS:
        for headers in (JSON, PAGE):
            assert ann.browser.get(path, headers=headers).status_code in (308, 404), path


METHODS = ["HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "PROPFIND", "X" * 99]


def test_any_method_gets_an_answer(app: Flask, ann: Person, settings: Settings, chat: str) -> None:
    before = dump(settings)
    paths = {path_of(app, rule, session_id=chat) for rule, _ in routes(app)}
    for method in METHODS:
        for path in paths:
            answer = ann.browser.open(path, method=method, headers=JSON, data=b"x")
            answer.close()
            allowed = {"HEAD": {200, 303, 404, 405}, "OPTIONS": {200}}.get(method, {405})
            if path.startswith("/admin") and method in ("HEAD", "OPTIONS"):
                allowed = {403, 405} if method == "HEAD" else {403}  # ann is no admin
            assert answer.status_code in allowed, f"{method} {path}: {answer.status_code}"
            if answer.status_code == 405:
                assert answer.headers["Allow"]
                assert method not in answer.headers["Allow"].split(", ")
            if method == "HEAD" or answer.status_code == 200:
                assert answer.get_data() == b""
    assert dump(settings) == before


ODD_HEADERS = {
    "Host": ["a b", "[", "é", "", "x" * 5000],
    "Cookie": ["\xff=\xfe;;;=", "agentapp", "agentapp=" + "." * 5000, "remember_token=x|\xe9"],
    "Referer": ["http://[", "\xff"],
    "Origin": ["null"],
    "Range": ["bytes=5-1", "bytes=99999999-"],
    "If-Modified-Since": ["yesterday"],
    "If-None-Match": ["\xff"],
    "User-Agent": ["\xff" * 500],
    "X-Forwarded-For": ["\xff"],
    "Authorization": ["Basic \xff", "Bearer"],
    "Content-Encoding": ["gzip"],
    "Transfer-Encoding": ["chunked"],
    "X-HTTP-Method-Override": ["DELETE"],
    "X-CSRFToken": ["\xff"],
    "Last-Event-ID": ["x"],
}


def test_odd_headers_are_no_server_error(app: Flask) -> None:
    for name, values in ODD_HEADERS.items():
        for value in values:
            for path in ("/login", "/chat", "/livez", "/static/style.css", "/absent"):
                answer = app.test_client().get(path, headers={name: value})
                answer.close()
                assert answer.status_code < 500, f"{name}: {value} {path}"


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ("", 422, "invalid-message"),
        (" \n\t ", 422, "invalid-message"),
        ("\u2003\u00a0", 422, "invalid-message"),
        ("a\0b", 422, "invalid-message"),
        ("x" * (MAX_MESSAGE_CHARS + 1), 413, "message-too-long"),
        ("\0" * (MAX_MESSAGE_CHARS + 1), 413, "message-too-long"),
        ("💥" * (MAX_MESSAGE_CHARS + 1), 413, "message-too-long"),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_a_refused_message_has_its_code_and_the_page_keeps_what_was_typed(
    settings: Settings, ann: Person, chat: str, message: str, status: int, code: str
) -> None:
    before = dump(settings)
    for headers in (JSON, EVENTS, {"Accept": "*/*"}):
        answer = ann.send(chat, message, headers)
        assert (answer.status_code, answer.json["code"]) == (status, code)
    page = ann.send(chat, message, PAGE)
    assert page.status_code == status
    form = Page(page.text).form(f"/chat/{chat}/messages", after="")
    assert form.fields["idempotency_key"]
    # A parser drops or replaces a NUL, and a browser drops the first line end.
    kept = form.fields["message"].replace("\ufffd", "\0")
    assert kept.lstrip("\n") == message.lstrip("\n")
    assert 'role="alert"' in page.text
    assert dump(settings) == before


def test_half_a_surrogate_pair_does_not_break_the_page_that_refuses_it(sender: Sender, chat: str) -> None:
    body = b'{"message": "before \\ud800 after"}'
    answer = sender.post(f"/chat/{chat}/messages", body, "application/json", PAGE)
    assert answer.status_code == 422
    assert "before ? after" in answer.text


def test_what_just_fits_is_taken(ann: Person, chat: str) -> None:
    assert ann.send(chat, "💥" * MAX_MESSAGE_CHARS, idempotency_key="k" * MAX_KEY_CHARS).status_code == 200
    assert ann.post(f"/chat/{chat}/rename", title="💥" * MAX_TITLE_CHARS).status_code == 303
    whole = ann.get(f"/chat/{chat}/export.json").json
    assert whole["session"]["title"] == "💥" * MAX_TITLE_CHARS
    assert whole["messages"][0]["content"] == "💥" * MAX_MESSAGE_CHARS


def test_one_more_than_fits_is_refused(ann: Person, chat: str) -> None:
    assert ann.send(chat, "hi", idempotency_key="k" * (MAX_KEY_CHARS + 1)).status_code == 400
    assert ann.post(f"/chat/{chat}/rename", title="x" * (MAX_TITLE_CHARS + 1)).status_code == 400
    assert ann.post(f"/chat/{chat}/rename", title=" \n ").status_code == 400


def test_line_ends_are_made_the_same_and_nothing_else_is_changed(ann: Person, chat: str) -> None:
    ann.ask(chat, "one\r\ntwo\rthree\n\n  four\u0085\u2028\u200b ")
    said = ann.get(f"/chat/{chat}/export.json").json["messages"][0]["content"]
    assert said == "one\ntwo\nthree\n\n  four\u0085\u2028\u200b "


def test_an_empty_key_is_no_key(ann: Person, chat: str) -> None:
    first, second = (ann.send(chat, "hello", idempotency_key="").json for _ in range(2))
    assert first["turn_id"] != second["turn_id"]


SOME_TEXT = st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))


@examples(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=60) | SOME_TEXT)
def test_any_bytes_as_message_or_title_are_kept_whole_or_refused(
    parts: Parts, sender: Sender, ann: Person, raw: bytes
) -> None:
    chat = ann.new_chat()
    try:
        text: str | None = raw.decode()
    except UnicodeDecodeError:
        text = None
    good = text is not None and "\0" not in text and bool(text.strip())
    for name, path in (("message", "messages"), ("title", "rename")):
        body = f"{name}={quote_from_bytes(raw)}".encode()
        answer = sender.post(f"/chat/{chat}/{path}", body)
        assert answer.status_code == ({"message": 200, "title": 303}[name] if good else answer.status_code)
        assert good or answer.status_code in (400, 422), answer.text
        assert sender.post(f"/chat/{chat}/{path}", raw, "application/json").status_code in (400, 422)
        assert sender.post(f"/chat/{chat}/{path}", raw, MULTIPART).status_code in (400, 422)
        sender.post(f"/chat/{chat}/{path}", raw).close()
    if good and text is not None:
        whole = ann.get(f"/chat/{chat}/export.json").json
        assert whole["messages"][0]["content"] == text.replace("\r\n", "\n").replace("\r", "\n")
        assert whole["session"]["title"] == " ".join(text.split())
    assert ann.get(f"/chat/{chat}").status_code == 200


def test_ids_are_random_and_128_bits_or_more(ann: Person) -> None:
    made = {ann.new_chat() for _ in range(20)} | {new_id() for _ in range(1000)}
    assert len(made) == 1020
    assert min(map(len, made)) * 6 >= 128


def test_a_host_that_can_be_none_is_a_bad_request_in_the_usual_form(ann: Person) -> None:
    chat = ann.new_chat()
    for path in (f"/chat/{chat}", "/login", "/nowhere", "/login"):
        for accept in (PAGE, JSON):
            answer = ann.browser.get(path, headers=accept, environ_overrides={"HTTP_HOST": "x" * 5000})
            assert answer.status_code == 400, path
            assert "This server does not answer to the name that it was asked by." in answer.text


@pytest.mark.parametrize("host", ["", "a b", "[::1", "\xff", "a..b", "a/b", "user@host", "localhost:x"])
def test_no_host_is_a_server_error(ann: Person, host: str) -> None:
    for path in ("/chat", "/nowhere"):
        answer = ann.browser.get(path, headers=PAGE, environ_overrides={"HTTP_HOST": host})
        assert answer.status_code < 500, path


@pytest.mark.parametrize("cookie", ["other=\xff\xfe", "\xff", "other=\xc3\xa9"])
def test_a_cookie_of_another_program_that_is_no_utf8_does_not_sign_anybody_out(
    app: Flask, ann: Person, cookie: str
) -> None:
    own = ann.browser.get_cookie("agentapp")
    assert own is not None
    with app.test_client(use_cookies=False) as browser:
        sent = f"{cookie}; agentapp={own.value}"
        answer = browser.get("/chat", headers=PAGE, environ_overrides={"HTTP_COOKIE": sent})
        assert answer.status_code == 200
        assert app.extensions["agentapp.user_of"](sent) is not None
        assert app.extensions["agentapp.user_of"](cookie) is None
