"""A person at a real server: one connection, one cookie, every byte that comes back kept."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from http.client import HTTPConnection
from urllib.parse import urlencode, urlsplit

from tests.people import csrf_of


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def everything(self) -> bytes:
        """Head and body: nothing of somebody else may be in either."""
        head = "\n".join(f"{name}: {value}" for name, value in self.headers.items())
        return head.encode() + b"\n\n" + self.body


@dataclass
class Visitor:
    """Not for use by two threads at once."""

    url: str
    timeout: float = 60.0
    cookies: dict[str, str] = field(default_factory=dict)
    csrf: str = ""

    def get(self, path: str, accept: str = "text/html") -> Answer:
        return self._ask("GET", path, accept)

    def post(self, path: str, accept: str = "text/html", **data: str) -> Answer:
        return self._ask("POST", path, accept, urlencode({"csrf_token": self.csrf, **data}))

    def sign_in(self, name: str, password: str) -> None:
        self.csrf = csrf_of(self.get("/login").text)
        answer = self.post("/login", username=name, password=password)
        assert answer.status == 303, answer.text
        self.csrf = csrf_of(self.get("/chat").text)

    def new_chat(self) -> str:
        answer = self.post("/chat")
        assert answer.status == 303, answer.text
        return answer.headers["Location"].rsplit("/", 1)[1]

    def send(self, chat: str, message: str, accept: str = "application/json") -> Answer:
        return self.post(f"/chat/{chat}/messages", accept, message=message)

    def _ask(self, method: str, path: str, accept: str, body: str | None = None) -> Answer:
        where = urlsplit(self.url)
        connection = HTTPConnection(where.hostname or "", where.port, timeout=self.timeout)
        try:
            headers = {"Accept": accept, "Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
            if body is not None:
                headers["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            for cookie in answer.headers.get_all("Set-Cookie") or ():
                found = re.match(r"([^=;]+)=([^;]*)", cookie)
                if found:
                    self.cookies[found[1]] = found[2]
            return Answer(answer.status, dict(answer.headers.items()), answer.read())
        finally:
            connection.close()
