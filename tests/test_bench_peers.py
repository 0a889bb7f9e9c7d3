"""Other people's servers are spoken to as their pages do, measured where they fit, and may be missing."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path

import pytest

from bench.turns.exchange import Answer
from bench.turns.jobs import jobs
from bench.turns.peers import installing
from bench.turns.peers.chainlit_client import connected, message
from bench.turns.peers.installing import NotInstalled, installed
from bench.turns.peers.servers import CHAINLIT, PEERS
from bench.turns.peers.websocket import PING, TEXT, Frames, framed
from bench.turns.plans import Person, Phase
from bench.turns.systems import System
from bench.turns.talk import PLAIN

NOBODY = Person("", "", (CHAINLIT.path,))
PHASE = Phase("loop", PLAIN.message, PLAIN.reply, 1)


def from_server(payload: bytes, kind: int = TEXT) -> bytes:
    """As a client would frame it, but without a mask."""
    frame = bytearray(framed(payload, kind))
    del frame[len(frame) - len(payload) - 4 : len(frame) - len(payload)]
    frame[1] &= 0x7F
    return bytes(frame)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_frames_are_found_in_whatever_pieces_they_come(piece: int) -> None:
    expected = [(TEXT, b"x" * size) for size in (0, 125, 126, 1 << 16)] + [(PING, b"")]
    sent = b"".join(from_server(payload, kind) for kind, payload in expected)
    frames, found = Frames(), []
    for at in range(0, len(sent), piece):
        found += frames.feed(sent[at : at + piece])
    assert found == expected


class Chainlit(asyncio.Protocol):
    """As much of the app's side as one turn needs."""

    def __init__(self, end: bytes) -> None:
        self._end = end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET "):
            self._transport.write(b"HTTP/1.1 101 \r\n\r\n" + from_server(b'0{"sid":"s"}'))
        elif b"\0\0\0\x0040{" in data:
            self._transport.write(from_server(b'40{"sid":"s"}'))
        elif b"connection_successful" in data:
            for name in (b"task_end", b"clear_ask", b"clear_call_fn"):
                self._transport.write(from_server(b'42["%s",{}]' % name))
        elif b"client_message" in data and PLAIN.message.encode() in data:
            said = b'42["new_message",{"output":"%s"}]' % PLAIN.reply.encode()
            self._transport.write(from_server(said) + self._end)


async def turn(end: bytes) -> Answer:
    server = await asyncio.get_running_loop().create_server(lambda: Chainlit(end), "127.0.0.1", 0)
    async with server:
        connection = await connected(server.sockets[0].getsockname()[1])
        answer = await connection.ask(message(NOBODY, CHAINLIT.path, PHASE), 0.2)
        connection.close()
    return answer


def test_a_chainlit_turn_is_whole_when_its_page_would_let_one_send_again() -> None:
    whole = asyncio.run(turn(from_server(b'42["task_end",{}]')))
    assert (whole.status, whole.fault(PLAIN.reply)) == (200, "")
    assert asyncio.run(turn(b"")).fault(PLAIN.reply) == "timeout"
    assert asyncio.run(turn(from_server(b"", kind=8))).fault(PLAIN.reply) == "cut"


def test_peers_are_measured_for_plain_turns_and_nothing_else() -> None:
    many = {"sessions": [32], "streams": [128], "at_once": [300]}
    options = Namespace(
        what="plain,postgres,streams,burst,memory", seconds=1, repeat=1, repeat_others=1, **many
    )
    options.come_back = False
    for peer in PEERS.values():
        found = [job.name for job in jobs(options) if job.systems(System(peer.name, [], peer=peer))]
        assert found == ["plain, 32 sessions"]


def test_every_peer_has_pins_and_what_it_serves() -> None:
    for peer in PEERS.values():
        assert peer.source.is_file()
        pins = (installing.HERE / f"{peer.name}.txt").read_text().split()
        assert all("==" in pin for pin in pins)
        assert any(pin.startswith(f"{peer.name}==") for pin in pins)


def test_a_peer_is_installed_once_and_says_if_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def install(pins: Path, venv: Path) -> None:
        made.append(venv)
        venv.mkdir()
        (venv / installing.DONE).touch()

    monkeypatch.setattr(installing, "_install", install)
    assert installed("litellm", tmp_path) == installed("litellm", tmp_path)
    assert len(made) == 1
    monkeypatch.undo()
    (tmp_path / "file").touch()
    with pytest.raises(NotInstalled, match="not installed: "):
        installed("litellm", tmp_path / "file")
