"""A server that speaks as much of the Messages API as a bench needs, in a process of its own.

    python -m bench.turns.model --port N

It has the machine's processors in common with what is measured, so it does as little as it can: it does not
parse what it is sent, and sends bytes that are ready. `talk.Talk` says what a message can ask for.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import re
from typing import Any

from bench.turns.processes import allow_open_files
from bench.turns.talk import Talk, asked_for

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
STREAMED = re.compile(rb'"stream": ?true')
USAGE = {"input_tokens": 50, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
HEAD = b"HTTP/1.1 200 OK\r\nrequest-id: req_bench\r\ncontent-type: %s\r\n%s\r\n\r\n"


class Conversation(asyncio.Protocol):
    """One connection: requests one after the other."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._received = transport, b""
        self._timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if found and len(body) >= (int(length[1]) if length else 0):
            self._received = b""
            self._answer(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()

    def _answer(self, body: bytes) -> None:
        talk = asked_for(body)
        if not STREAMED.search(body):
            self._transport.write(whole(talk))
            return
        start, words, end = events(talk)
        if not talk.pace:
            self._transport.write(start + b"".join(words) + end)
            return
        self._transport.write(start + words[0])
        self._say_the_rest(talk.pace, [*words[1:-1], words[-1] + end])

    def _say_the_rest(self, pace: float, words: list[bytes]) -> None:
        """Each word at its time, counted from the beginning, so that late ones do not add up."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def say(n: int) -> None:
            self._transport.write(words[n])
            if n + 1 < len(words):
                self._timer = loop.call_at(began + (n + 2) * pace, say, n + 1)

        self._timer = loop.call_at(began + pace, say, 0)


@functools.cache
def whole(talk: Talk) -> bytes:
    """The answer to a request that does not ask for a stream."""
    message = _message(content=[{"type": "text", "text": talk.reply}], words=talk.words, stop="end_turn")
    body = json.dumps(message).encode()
    return HEAD % (b"application/json", b"content-length: %d" % len(body)) + body


@functools.cache
def events(talk: Talk) -> tuple[bytes, list[bytes], bytes]:
    """The answer's head and first events, an event for each word, and the last events."""
    head = HEAD % (b"text/event-stream", b"transfer-encoding: chunked")
    message = _message(content=[], words=1, stop=None)
    start = _event("message_start", message=message) + _event(
        "content_block_start", index=0, content_block={"type": "text", "text": ""}
    )
    words = [
        _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        for piece in talk.pieces
    ]
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    end = (
        _event("content_block_stop", index=0)
        + _event("message_delta", delta=delta, usage={**USAGE, "output_tokens": talk.words})
        + _event("message_stop")
    )
    return head + start, words, end + b"0\r\n\r\n"


def _message(*, content: list[Any], words: int, stop: str | None) -> dict[str, Any]:
    return {
        "id": "msg_bench",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {**USAGE, "output_tokens": words},
    }


def _event(kind: str, **data: Any) -> bytes:
    """As one chunk of the answer."""
    event = f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Conversation, "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    allow_open_files()
    gc.freeze()
    asyncio.run(serve(parser.parse_args().port))
