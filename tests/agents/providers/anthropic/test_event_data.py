"""Server-sent events are what the SDK's own decoder says that they are, in whatever pieces they come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import httpx2
from anthropic import Stream
from hypothesis import example, given
from hypothesis import strategies as st

from agentapp.agents.providers.anthropic.event_data import EventDataDecoder

FIELDS = (
    b"data: ",
    b"data:",
    b"data",
    b"event: x",
    b"id: 7",
    b"id: a\0",
    b"retry: 5",
    b": note",
    b"other: x",
)
LINE_ENDS = (b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n")
WORDS = (b" ", b"{}", b"a", b":", "ä".encode(), "🌍".encode(), b"\xef\xbb\xbf", b"\xff")
NO_LINE_ENDS = ("\N{LINE SEPARATOR}\x0b\x0c\x1c\x85".encode(),)
PIECES = st.sampled_from(FIELDS + LINE_ENDS * 2 + WORDS + NO_LINE_ENDS)


def data_by_the_sdk(whole: bytes) -> Iterator[str]:
    return (event.data for event in Stream.raw_events(httpx2.Response(200, content=whole)) if event.data)


def data_by_us(whole: bytes, cuts: list[int]) -> Iterator[str]:
    decoder = EventDataDecoder()
    places = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    for one, other in pairwise(places):
        yield from decoder.decode(whole[one:other])


def until_it_fails(data: Iterator[str]) -> list[str]:
    found: list[str] = []
    try:
        found.extend(data)
    except UnicodeDecodeError:
        found.append("(not UTF-8)")
    return found


@given(pieces=st.lists(PIECES, max_size=30), cuts=st.lists(st.integers(0, 300), max_size=10))
@example([b"data: a\r\n", b"data: b\r\n\r\n"], list(range(30)))
@example([b"data: a\r\r", b"data: b\r\r"], list(range(30)))
@example([b"data: \xf0\x9f", b"\x8c\x8d\n\n"], [8])
def test_it_finds_what_the_sdk_finds(pieces: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(pieces) + b"\n"  # what is cut in the middle of a line is an event to neither
    assert until_it_fails(data_by_us(whole, cuts)) == until_it_fails(data_by_the_sdk(whole))


def test_an_event_is_there_as_soon_as_its_empty_line_has_begun() -> None:
    decoder = EventDataDecoder()
    assert [list(decoder.decode(part)) for part in (b"data: a\r", b"\r", b"data: b\n", b"\n")] == [
        [],
        ["a"],
        [],
        ["b"],
    ]
