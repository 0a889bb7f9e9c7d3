"""Requests as nobody should send them, made from a seed: every route, odd in every part."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND")
NONSENSE_METHODS = ("get", "G", "FOO-BAR", "GE T", "GET\0", "\xff", "A" * 300, "", "GET,POST", "DELETE ALL")
ODD_TEXTS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "\udfff\ud800",
    "\u202egnp.exe",
    "\u2028\u2029\x85",
    "\x1b[31m\x07",
    "ﷺ" * 50,
    "é" * 3000,
    "💥" * 200,
    "-1",
    "0",
    "1e400",
    "9" * 400,
    "NaN",
    "../../../etc/passwd",
    "//elsewhere.example",
    "https://elsewhere.example/",
    "' OR 1=1 --",
    "<script>alert(1)</script>",
    "{{7*7}}${7*7}%s%n",
    "hello",
    "a plain message",
    "2+2",
    "x" * 40_000,
)
FIELDS = (
    "message", "title", "idempotency_key", "csrf_token", "username", "password", "next", "token", "theme",
    "parent", "replaces", "turn_id", "decision", "q", "after", "page", "before", "version", "edit",
)  # fmt: skip
ACCEPTS = (
    "text/html", "application/json", "text/event-stream", "*/*", "", "text/html;q=0",
    "application/json;q=NaN", ",,,;;;", "text/*;q=1e9", "image/png",
    "text/html;level=1, */*;q=0.1", "\xff", "a/b" * 500,
)  # fmt: skip
TYPES = (
    "application/x-www-form-urlencoded", "application/json", "multipart/form-data; boundary=x", "text/plain",
    "multipart/form-data", "multipart/form-data; boundary=", "application/json; charset=utf-16",
    "application/x-www-form-urlencoded; charset=nonsense", "application/x-www-form-urlencoded; charset=utf-7",
    "application/octet-stream", "nonsense", "", "\xff/\xff", "application/vnd.api+json",
)  # fmt: skip
PARTS = (
    'form-data; name="{name}"',
    'form-data; name="{name}"; filename="x.txt"',
    "form-data",
    "form-data; name*=utf-8''%ff",
    "attachment",
    'form-data; name="{name}"\r\nContent-Type: text/plain; charset=utf-16',
    'form-data; name="{name}"\r\nContent-Transfer-Encoding: base64',
)


@dataclass
class Actor:
    """Somebody with a browser. ``chats`` and ``turns`` are their own, by address; a stranger has none.

    ``spare_chats`` may be deleted: without the others there would be nothing left to find.
    """

    name: str
    mark: str
    cookie: str = ""
    csrf: str = ""
    chats: list[str] = field(default_factory=list)
    spare_chats: list[str] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class OddRequest:
    route: str
    actor: Actor
    method: str
    raw: bytes
    # The body is shorter or longer than its header says, or the head is no HTTP: nothing can follow it.
    is_last: bool = False


class OddRequests:
    """The same seed gives the same requests, as far as the ids of the actors are the same."""

    def __init__(
        self, seed: str, routes: Sequence[tuple[str, frozenset[str]]], actors: Sequence[Actor]
    ) -> None:
        self._random = random.Random(seed)
        self._routes, self._actors = routes, actors

    def make(self) -> OddRequest:
        chance = self._random
        actor = chance.choice(self._actors)
        route, methods = chance.choice(self._routes)
        method = self._method(methods)
        good = chance.random() < 0.35  # all of it as it should be, but for one or two things
        path, fields = self._path(route, actor, good), self._fields(route, good)
        token = self._token(route, actor, good)
        head = [
            ("Host", self._mostly("localhost", ("", "elsewhere.example", "a b", "[::1", "\xff", "x" * 5000)))
        ]
        head += self._headers(actor, route, good)
        body, kind = b"", None
        if method not in ("GET", "HEAD") or chance.random() < 0.05:
            if chance.random() < 0.5:
                fields["csrf_token"] = token
            elif token:
                head.append(("X-CSRFToken", token))
            kind = TYPES[chance.randrange(3)] if good else chance.choice(TYPES)
            body = self._body(kind, fields, good)
        path += self._query(good)
        return self._written(route, actor, method, path, head, kind, body)

    def _method(self, methods: frozenset[str]) -> str:
        roll = self._random.random()
        if roll < 0.8:
            return self._random.choice(sorted(methods))
        return self._random.choice(METHODS if roll < 0.97 else NONSENSE_METHODS)

    def _path(self, route: str, actor: Actor, good: bool) -> str:
        """With an id of their own, of somebody else, of nobody, or with something that is none."""
        chance = self._random
        whose = actor if good else chance.choice(self._actors)
        chats = whose.spare_chats if route.endswith("/delete") else whose.chats
        chat, turn = chance.choice(chats or ["A" * 22]), "B" * 22
        if whose.turns and "turn_id" in route:
            chat, turn = chance.choice(whose.turns)

        def filled(found: re.Match[str]) -> str:
            known = {"session_id": chat, "turn_id": turn, "filename": "style.css"}
            if good or chance.random() < 0.7:
                return known.get(found[2], "x")
            odd = chance.choice(("A" * 22, "a", known.get(found[2], "")[:-1], *ODD_TEXTS))
            return quote(
                odd.encode("utf-8", "surrogatepass")[:200], safe="/" if chance.random() < 0.3 else ""
            )

        return re.sub(r"<(?:(\w+):)?(\w+)>", filled, route)

    def _token(self, route: str, actor: Actor, good: bool) -> str:
        if route == "/logout":
            return "forged"  # or soon nobody would be signed in any more
        others = ("", "forged", self._random.choice(self._actors).csrf, actor.csrf[:-2], actor.csrf * 2)
        return actor.csrf if good else self._mostly(actor.csrf, others, 0.4)

    def _fields(self, route: str, good: bool) -> dict[str, Any]:
        chance = self._random
        if good:
            return {"message": f"number {chance.randrange(1000)}", "title": "a title", "theme": "dark"}
        return {name: chance.choice(ODD_TEXTS) for name in chance.sample(FIELDS, chance.randrange(5))} | (
            {"message": chance.choice(ODD_TEXTS)} if route.endswith("/messages") else {}
        )

    def _query(self, good: bool) -> str:
        chance = self._random
        if chance.random() < (0.9 if good else 0.5):
            return ""
        if chance.random() < 0.2:
            return "?" + chance.choice(
                ("", "?", "&&&=", "%", "%zz", "%ff%fe", "a" * 5000, "q", "q=%00", "after[]=1")
            )
        pairs = [
            (chance.choice(FIELDS), chance.choice(ODD_TEXTS)[:200]) for _ in range(chance.randrange(1, 4))
        ]
        return "?" + urlencode([(name, value.encode("utf-8", "surrogatepass")) for name, value in pairs])

    def _headers(self, actor: Actor, route: str, good: bool) -> list[tuple[str, str]]:
        chance = self._random
        accept = chance.choice(ACCEPTS[:3]) if good else chance.choice(ACCEPTS)
        head = [("Accept", accept)]
        cookie = actor.cookie
        if not good and chance.random() < 0.4:
            cookie = chance.choice(
                ("", cookie[:-3], cookie[::-1], f"{cookie}; agentapp=forged", f"agentapp=.{cookie}",
                 "agentapp", "=;=", "\xff", "agentapp=" + "A" * 6000,
                 f"theme=\"\\303; {cookie}", "remember_token=1|aa")
            )  # fmt: skip
        if cookie:
            head.append(("Cookie", cookie))
        if good:
            return head
        odd = (
            ("Last-Event-ID", chance.choice(("1", "-1", "x", "9" * 50, "1e3", "\xff", "٣", "0x10", ""))),
            ("Origin", chance.choice(("null", "https://elsewhere.example", "http://localhost", "\xff"))),
            ("Referer", chance.choice(("https://elsewhere.example/x", "nonsense", ""))),
            ("X-Forwarded-For", "9.9.9.9"),
            ("X-Forwarded-Proto", "https"),
            ("X-Requested-With", "XMLHttpRequest"),
            ("If-None-Match", '"x"'),
            ("If-Modified-Since", "yesterday"),
            ("Range", chance.choice(("bytes=0-0", "bytes=5-1", "lines=1", "bytes=-99999999999"))),
            ("Authorization", chance.choice(("Basic ////", "Bearer \xff", "Digest x=", "Basic YTpi"))),
            ("Accept-Encoding", "gzip, br;q=x"),
            ("Accept-Language", "\xff;q=2"),
            ("Content-Encoding", "gzip"),
            ("X-HTTP-Method-Override", "DELETE"),
            ("Expect", "100-continue"),
            ("Upgrade", "websocket"),
            ("Traceparent", "00-zz"),
        )
        return head + chance.sample(odd, chance.randrange(4))

    def _body(self, kind: str, fields: dict[str, Any], good: bool) -> bytes:
        chance = self._random
        if not good and chance.random() < 0.15:
            return chance.choice(
                (b"", b"\xff\xfe\0", chance.randbytes(200), b"{", b"--x\r\n", b"a=" + b"%" * 500)
            )
        if "json" in kind:
            return self._json(fields, good)
        if "multipart" in kind:
            return self._multipart(fields, good)
        return urlencode({k: v.encode("utf-8", "surrogatepass") for k, v in fields.items()}).encode()

    def _json(self, fields: dict[str, Any], good: bool) -> bytes:
        chance = self._random
        if good:
            return json.dumps(fields).encode()
        name = chance.choice(("message", "title", "username"))
        written = json.dumps(fields)
        return chance.choice(
            (
                written.encode(),
                written.encode("utf-16"),
                json.dumps(list(fields.items())).encode(),
                b"[" * 3000 + b"]" * 3000,
                b'{"a":' * 3000,
                f'{{"{name}": NaN, "title": Infinity}}'.encode(),
                f'{{"{name}": {"9" * 5000}}}'.encode(),
                f'{{"{name}": 1e999}}'.encode(),
                f'{{"{name}": ["x"], "csrf_token": {{}}}}'.encode(),
                f'{{"{name}": "\\ud800", "{name}": null}}'.encode(),
                b"null",
                b"true",
                b'"text"',
                b"\xef\xbb\xbf{}",
            )
        )

    def _multipart(self, fields: dict[str, Any], good: bool) -> bytes:
        chance, pieces = self._random, []
        for name, value in fields.items():
            part = PARTS[0] if good else chance.choice(PARTS)
            head = f"--x\r\nContent-Disposition: {part.format(name=name)}\r\n\r\n"
            pieces.append(head.encode() + value.encode("utf-8", "surrogatepass") + b"\r\n")
        return b"".join(pieces) + (b"--x--\r\n" if good or chance.random() < 0.8 else b"")

    def _written(
        self,
        route: str,
        actor: Actor,
        method: str,
        path: str,
        head: list[tuple[str, str]],
        kind: str | None,
        body: bytes,
    ) -> OddRequest:
        chance, is_last = self._random, False
        version = self._mostly("HTTP/1.1", ("HTTP/1.0", "HTTP/9.9", "HTTP/2.0", "nonsense", ""), 0.99)
        if kind:
            head.append(("Content-Type", kind))
        if body or kind is not None:
            if chance.random() < 0.03:  # it says another length than it has
                said = chance.choice(
                    (str(len(body) + 5), str(max(0, len(body) - 1)), "-1", "x", "1,2", "9" * 30)
                )
                head.append(("Content-Length", said))
                is_last = True
            elif chance.random() < 0.05:
                head.append(("Transfer-Encoding", "chunked"))
                body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if body else b"0\r\n\r\n"
            else:
                head.append(("Content-Length", str(len(body))))
        if chance.random() < 0.005:
            head.append(
                chance.choice((("Bad Name", "x"), ("X", "a\r\n folded"), ("", "x"), ("Content-Length", "7")))
            )
            is_last = True
        lines = [f"{method} {path} {version}", *(f"{name}: {value}" for name, value in head)]
        raw = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body
        return OddRequest(route, actor, method, raw, is_last or version != "HTTP/1.1")

    def _mostly(self, usual: str, others: Sequence[str], share: float = 0.97) -> str:
        return usual if self._random.random() < share else self._random.choice(others)


@dataclass
class Ids:
    """New chats and turns, which come from answers on any connection."""

    lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, request: OddRequest, head: bytes, body: bytes) -> None:
        found = re.search(rb"\r\nLocation: (?:https?://[^/\r]+)?/chat/([\w-]+)\r\n", head, re.I)
        turn = re.search(rb'"turn_id": ?"([\w-]+)"', body)
        chat = re.search(rb" /chat/([\w-]+)/", request.raw)
        with self.lock:
            if found and request.route == "/chat":
                request.actor.spare_chats[:] = [*request.actor.spare_chats, found[1].decode()][-20:]
            if turn and chat and request.route.endswith("/messages"):
                request.actor.turns[:] = [*request.actor.turns, (chat[1].decode(), turn[1].decode())][-20:]
