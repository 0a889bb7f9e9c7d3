"""A request that comes in piece by piece: whole at its last byte, however it was cut."""

from __future__ import annotations

import pytest
from gunicorn.config import Config
from gunicorn.http import errors
from hypothesis import given, settings
from hypothesis import strategies as st

from agentapp.server.incoming_request import IncomingRequest
from agentapp.server.limits import MAX_BODY_BYTES, MAX_BODY_BYTES_SIGNED_OUT, MAX_CHUNKS, MAX_HEAD_BYTES
from agentapp.server.unreadable import TooSlow, problem_with, stand_in_for

CLIENT = ("127.0.0.1", 5000)
HEAD = b"POST /login HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = {
    "without a body": (b"GET /chat?q=1 HTTP/1.1\r\nHost: a\r\n\r\n", b""),
    "after an empty line": (b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", b""),
    "without headers": (b"GET / HTTP/1.0\r\n\r\n", b""),
    "with a length": (HEAD + b"Content-Length: 11\r\n\r\nusername=a\n", b"username=a\n"),
    "with line ends in its body": (HEAD + b"Content-Length: 8\r\n\r\n\r\n\r\n\r\n\r\n", b"\r\n\r\n\r\n\r\n"),
    "in chunks": (CHUNKED + b"4\r\nuser\r\nB;ext=1\r\nname=a&b=\r\n\r\n0\r\n\r\n", b"username=a&b=\r\n"),
    "in chunks with trailers": (CHUNKED + b"1\r\na\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n", b"a"),
}
MALFORMED = {
    "no size": CHUNKED + b"zz\r\nuser\r\n0\r\n\r\n",
    "empty size": CHUNKED + b"\r\nuser\r\n0\r\n\r\n",
    "negative size": CHUNKED + b"-4\r\nuser\r\n0\r\n\r\n",
    "no line end after a chunk": CHUNKED + b"4\r\nuserXX0\r\n\r\n",
    "shorter than its size": CHUNKED + b"5\r\nuser\r\n0\r\n\r\n",
    "an endless size line": CHUNKED + b"4;" + b"x" * 9000,
    "a bad extension": CHUNKED + b"4;=\r\nuser\r\n0\r\n\r\n",
}
UNREADABLE = {
    "no request line": (b"hello\r\n\r\n", 400),
    "bare newlines": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "a NUL in front": (b"\0GET / HTTP/1.1\r\n\r\n", 400),
    "two empty lines in front": (b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400),
    "an address too long": (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", 414),
    "an endless address": (b"GET /" + b"a" * (MAX_HEAD_BYTES + 1), 414),
    "a header too long": (b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431),
    "endless headers": (b"GET / HTTP/1.1\r\n" + b"X: aaaaaaaa\r\n" * 6000, 431),
    "too many headers": (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
    "an unknown transfer coding": (HEAD + b"Transfer-Encoding: secret\r\n\r\n", 400),
    "a compressed body": (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 400),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    "a length and chunks": (HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "a negative length": (HEAD + b"Content-Length: -1\r\n\r\n", 400),
    "another expectation": (HEAD + b"Expect: cake\r\nContent-Length: 1\r\n\r\n", 417),
}


def user_of(cookies: str) -> str | None:
    return "anna" if cookies == "signed-in=anna" else None


def incoming(*pieces: bytes) -> IncomingRequest:
    made = IncomingRequest(Config(), CLIENT, 1, user_of)
    for piece in pieces:
        made.feed(piece)
    return made


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_request_is_whole_at_its_last_byte_however_it_is_cut(data: st.DataObject) -> None:
    raw, body = data.draw(st.sampled_from(list(WHOLE.values())))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=8)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    made = incoming()
    for piece in pieces:
        assert not made.is_whole
        made.feed(piece)
    assert made.is_whole
    assert made.error is None
    made.read_body()
    assert made.request.body.read() == body
    assert made.rest() == b""


@pytest.mark.parametrize(("raw", "body"), WHOLE.values(), ids=WHOLE)
def test_what_comes_after_a_request_is_the_next_one(raw: bytes, body: bytes) -> None:
    made = incoming(raw + b"GET /next HTTP/1.1\r\n")
    made.read_body()
    assert made.rest() == b"GET /next HTTP/1.1\r\n"


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_malformed_chunks_are_found_before_the_application_is_asked(raw: bytes) -> None:
    made = incoming(raw)
    assert made.is_whole
    with pytest.raises(errors.ParseException) as found:
        made.read_body()
    assert problem_with(found.value) == (400, "The chunks of the request are malformed.")


@pytest.mark.parametrize(("raw", "status"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_a_4xx_at_once(raw: bytes, status: int) -> None:
    made = incoming(raw)
    assert made.is_whole
    assert made.error is not None
    assert problem_with(made.error)[0] == status


def test_what_broke_off_is_a_400_and_what_took_too_long_a_408() -> None:
    made = incoming(b"GET / HT")
    made.end()
    assert made.error is not None
    assert problem_with(made.error)[0] == 400
    assert problem_with(TooSlow())[0] == 408


@pytest.mark.parametrize("signed_in", [False, True])
def test_a_body_that_is_too_long_is_not_waited_for(signed_in: bool) -> None:
    most = MAX_BODY_BYTES if signed_in else MAX_BODY_BYTES_SIGNED_OUT
    head = HEAD + (b"Cookie: signed-in=anna\r\n" if signed_in else b"Cookie: a=b\r\n")
    assert not incoming(head + b"Content-Length: %d\r\n\r\n" % most).is_whole
    too_long = incoming(head + b"Content-Length: %d\r\n\r\n" % (most + 1))
    assert too_long.is_whole
    assert too_long.request.should_close()
    chunk = b"%X\r\n%b\r\n" % (most // 4, b"x" * (most // 4))
    endless = incoming(head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 9)
    assert endless.is_whole
    endless.read_body()
    assert len(endless.request.body.read()) > most
    assert endless.request.should_close()


def test_a_client_that_asks_first_is_told_to_go_on_once() -> None:
    made = incoming(HEAD + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert made.wants_continue
    made.feed(b"a=b")
    assert made.is_whole
    assert not made.request._expected_100_continue
    refused = incoming(HEAD + b"Expect: 100-continue\r\nContent-Length: 30000\r\n\r\n")
    assert refused.is_whole
    assert not refused.wants_continue


@pytest.mark.parametrize(("accept", "kind"), [(b"text/html", "text/html"), (b"*/*", "application/json")])
def test_an_unreadable_request_is_answered_in_the_form_it_asked_for(accept: bytes, kind: str) -> None:
    made = incoming(b"GET / HTTP/9.9.9\r\nAccept: " + accept + b"\r\n\r\n")
    request = stand_in_for(made, Config(), CLIENT)
    assert dict(request.headers)["ACCEPT"] == kind
    assert request.should_close()


def test_a_body_in_too_many_chunks_is_refused_before_they_are_read() -> None:
    made = incoming(CHUNKED + b"1\r\na\r\n" * (MAX_CHUNKS - 1))
    assert not made.is_whole
    made.feed(b"1\r\na\r\n" * 100)
    assert made.is_whole
    assert isinstance(made.error, errors.InvalidChunkSize)


@pytest.mark.parametrize(
    ("headers", "proxies", "address"),
    [
        (b"", 1, None),
        (b"X-Forwarded-For: 192.0.2.1\r\n", 0, None),
        (b"X-Forwarded-For: 192.0.2.1\r\n", 1, "192.0.2.1"),
        (b"X-Forwarded-For: forged, 192.0.2.1\r\n", 1, "192.0.2.1"),
        (b"X-Forwarded-For: forged\r\nX-Forwarded-For: 192.0.2.1\r\n", 1, "192.0.2.1"),
        (b"X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\n", 2, "192.0.2.1"),
        (b"X-Forwarded-For: 192.0.2.1\r\n", 2, None),
    ],
)
def test_who_sent_it_is_what_the_trusted_proxies_tell(
    headers: bytes, proxies: int, address: str | None
) -> None:
    made = incoming(b"GET /login HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n")
    assert made.forwarded_address(proxies) == address
