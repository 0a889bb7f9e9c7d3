"""How a server that ends stops listening without losing anybody who has just connected."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

# For a client that is connecting right now, to be there when the last ones are accepted.
CONNECTING_SECONDS = 0.02

SO_ATTACH_FILTER = 26  # of Linux; Python has no name for it
# A program for the kernel's packet filter, which sees what begins with the header of TCP: drop what has the
# flag SYN and not ACK, and let pass all else.
FLAGS_AT, SYN, ACK = 13, 0x02, 0x10
DROP_NEW = (
    (0x30, 0, 0, FLAGS_AT),  # load this byte
    (0x54, 0, 0, SYN | ACK),  # leave these bits
    (0x15, 0, 1, SYN),  # if it is this, go on, else leave one out
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # let pass
)


def take_no_new(listeners: Iterable[Any]) -> None:
    """From now on nobody new is connected, in all processes that have the sockets; who is half connected will
    be. To be called a moment before they are closed for good.

    Whoever is connected and not accepted when a socket is closed is cut off, with a request that was perhaps
    sent already and that no proxy may send again. Who is not connected yet asks again after a second, and is
    refused.
    """
    if not sys.platform.startswith("linux"):
        return
    program = b"".join(struct.pack("HBBI", *step) for step in DROP_NEW)
    kept = ctypes.create_string_buffer(program, len(program))
    option = struct.pack("HL", len(DROP_NEW), ctypes.addressof(kept))
    for listener in listeners:
        if listener.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # a kernel without it: as it is with other systems
                listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)
