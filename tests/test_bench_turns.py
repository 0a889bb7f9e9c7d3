"""The bench of turns measures what it says: what it takes for whole is whole, and what it counts was sent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import anthropic
import pytest

from bench.turns.exchange import Answer, connected, unchunked
from bench.turns.figures import Figures, Row
from bench.turns.model import Conversation
from bench.turns.parts import running_app, send_all
from bench.turns.people import add_people
from bench.turns.slow_link import Counts, Messages
from bench.turns.talk import Talk

TALK = Talk(3, 0.001)


def events(*words: str, end: dict[str, str] | None) -> bytes:
    texts = [("text", {"text": word}) for word in words]
    ends = [] if end is None else [("turn_completed", end)]
    return b"".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode() for kind, data in texts + ends)


def fault(body: bytes, status: int = 200, note: str = "") -> str:
    return Answer(status, b"", body, 0.0, None, note).fault(TALK.reply)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (events(*TALK.pieces, end={"status": "completed", "reply": TALK.reply}), ""),
        (events(*TALK.pieces, end=None), "no end"),
        (events(*TALK.pieces[1:], end={"status": "completed", "reply": TALK.reply}), "words are missing"),
        (events(*TALK.pieces[1:], end={"status": "completed", "reply": "word2 word3"}), "another reply"),
        (events(*TALK.pieces, end={"status": "interrupted", "reply": TALK.reply}), "turn interrupted"),
        (json.dumps({"status": "completed", "reply": TALK.reply}).encode(), ""),
        (json.dumps({"status": "completed", "reply": "word1"}).encode(), "another reply"),
        (json.dumps({"choices": [{"message": {"content": TALK.reply}}]}).encode(), ""),
        (json.dumps({"choices": [{"message": {"content": "word1"}}]}).encode(), "another reply"),
    ],
)
def test_only_all_of_the_reply_with_its_end_is_whole(body: bytes, expected: str) -> None:
    assert fault(body) == expected


def test_a_refusal_and_a_cut_answer_are_named() -> None:
    assert fault(b'{"error": {"code": "busy"}}', status=503) == "busy"
    assert fault(events(*TALK.pieces, end=None), status=0, note="cut") == "cut"


def test_chunks_are_put_together() -> None:
    assert unchunked(b"3\r\nabc\r\n2\r\n\r\n\r\n0\r\n\r\n") == b"abc\r\n"


def test_the_sdk_gets_the_words_that_were_asked_for_and_so_does_a_cheap_client() -> None:
    async def ask() -> tuple[str, str, Answer]:
        server = await asyncio.get_running_loop().create_server(Conversation, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": TALK.message}]}
        async with (
            server,
            anthropic.AsyncAnthropic(api_key="k", base_url=f"http://127.0.0.1:{port}") as client,
        ):
            whole = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                streamed = await stream.get_final_text()
            body = json.dumps(asked)
            connection = await connected(port)
            request = f"POST /v1/messages HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            answer = await connection.ask(request.encode(), 5)
            connection.close()
        return whole.content[0].text, streamed, answer

    whole, streamed, answer = asyncio.run(ask())
    assert whole == streamed == TALK.reply
    assert (answer.status, answer.note) == (200, "")
    assert json.loads(answer.body)["content"][0]["text"] == TALK.reply


def test_statements_are_counted_in_whatever_pieces_they_come() -> None:
    def message(kind: bytes, text: bytes) -> bytes:
        return kind + (len(text) + 4).to_bytes(4) + text

    sent = message(b"", b"start EQ") + message(b"Q", b"EEE") + message(b"P", b"Q") + message(b"E", b"")
    for size in (1, 3, len(sent)):
        counts = Counts()
        messages = Messages(counts)
        for at in range(0, len(sent), size):
            messages.feed(sent[at : at + size])
        assert counts.statements == 2


def test_people_who_were_added_straight_to_the_tables_are_signed_in_and_get_answers(tmp_path: Path) -> None:
    people = add_people(tmp_path / "instance", count=2)
    with running_app(tmp_path) as app:
        for person in people:
            send_all(app, person, turns=2)  # asserts that each is answered


def test_the_ratio_is_of_runs_made_after_each_other_and_the_worst_is_shown() -> None:
    figures = Figures(["bare", "sqlite"])
    speed = Row("turns/s", more_is_better=True)
    for bare, sqlite in ((100, 50), (200, 80), (100, 60)):
        figures.add("bare", speed, bare)
        figures.add("sqlite", speed, sqlite)
    ratios, measured = figures.table().split("\n\n")
    assert ratios.split()[-2:] == ["0.50x", "[0.40]"]
    assert measured.split()[-4:] == ["100.0", "[100.0]", "60.0", "[50.0]"]
