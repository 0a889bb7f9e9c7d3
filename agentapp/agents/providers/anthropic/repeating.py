"""A client of the SDK that sends the same request again and again without asking the SDK how."""

from __future__ import annotations

from contextlib import closing

import anthropic
import httpx2
from anthropic import Stream
from anthropic.types import RawMessageStreamEvent

from agentapp.agents.providers.anthropic.transport import AnswerStream, DirectTransport, head_of, origin_of

EVENTS = Stream[RawMessageStreamEvent]


class QuickClient(anthropic.Anthropic):
    """A client for one kind of request, of which only the content and the cookies change.

    The SDK makes its options, the address and the headers anew for each request, which takes longer than to
    send it. Once two requests have left that were alike, the next ones are made of the last. Errors are those
    that the SDK would raise. A version that has not the private attributes that this takes is just asked each
    time.

    ``direct`` is the transport of the client's network, if httpx can be left out too.
    """

    direct: DirectTransport | None = None
    _sent: SentRequest | None = None

    @property
    def user_agent(self) -> str:
        """That of the SDK, which would say the name of this class."""
        return f"Anthropic/Python {anthropic.__version__}"

    def send(
        self, path: str, content: bytes, timeout: httpx2.Timeout
    ) -> AnswerStream | httpx2.Response | EVENTS:
        """The answer to it, of which only the head was read. Raises the SDK's errors."""
        sent = self._sent
        if sent is not None and sent.can_be_repeated_for(path, timeout) and not self.is_closed():
            return self._send_again(sent, content)
        stream: EVENTS | httpx2.Response = self.post(
            path,
            cast_to=httpx2.Response,
            content=content,
            options={"timeout": timeout},
            stream=True,
            stream_cls=EVENTS,
        )
        if self._has_what_it_takes():
            response = stream.response if isinstance(stream, Stream) else stream
            self._sent = SentRequest(path, timeout, response.request, before=sent)
        return stream

    def _has_what_it_takes(self) -> bool:
        makes_errors = hasattr(self, "_make_status_error_from_response")
        return makes_errors and isinstance(getattr(self, "_client", None), httpx2.Client)

    def _send_again(self, sent: SentRequest, content: bytes) -> AnswerStream | httpx2.Response:
        cookies = self._client.cookies
        try:
            if self.direct is None:
                response = self._client.send(sent.with_content(content, cookies), stream=True)
            else:
                message = sent.message(content, cookies)
                answer = self.direct.ask(sent.origin, message, sent.timeouts)
                if answer.status == 200 and not answer.is_for_httpx:
                    return AnswerStream(answer, self.direct)
                response = self.direct.response_to(answer)
                response.request = sent.with_content(content, cookies)
                cookies.extract_cookies(response)
        except httpx2.TimeoutException as error:
            raise anthropic.APITimeoutError(request=sent.with_content(content, cookies)) from error
        except Exception as error:
            raise anthropic.APIConnectionError(request=sent.with_content(content, cookies)) from error
        if response.is_success:
            return response
        with closing(response):
            response.read()
        raise self._make_status_error_from_response(response) from None


class SentRequest:
    """A request as it has left, whoever added what to it, but for its content and cookies."""

    def __init__(
        self, path: str, timeout: httpx2.Timeout, request: httpx2.Request, before: SentRequest | None
    ) -> None:
        self._path, self._timeout = path, timeout
        self._url, self._extensions = request.url, request.extensions
        self._headers = httpx2.Headers(request.headers)
        for name in ("content-length", "cookie"):
            self._headers.pop(name, None)
        # Of a request without a stream httpx says how long it is.
        stream = httpx2.ByteStream(b"")
        self._head = head_of(httpx2.Request("POST", self._url, headers=self._headers, stream=stream))
        self.origin, self.timeouts = origin_of(request.url), request.extensions.get("timeout", {})
        self._is_repeatable = before is not None and self._is_like(before)

    def can_be_repeated_for(self, path: str, timeout: httpx2.Timeout) -> bool:
        return self._is_repeatable and path == self._path and timeout == self._timeout

    def message(self, content: bytes, cookies: httpx2.Cookies) -> bytes:
        """All bytes of the request with this content."""
        if cookies:
            return b"%s\r\n%s" % (head_of(self.with_content(content, cookies)), content)
        return b"%sContent-Length: %d\r\n\r\n%s" % (self._head, len(content), content)

    def with_content(self, content: bytes, cookies: httpx2.Cookies) -> httpx2.Request:
        headers = httpx2.Headers(self._headers)
        headers["content-length"] = str(len(content))
        request = httpx2.Request(
            "POST",
            self._url,
            headers=headers,
            stream=httpx2.ByteStream(content),
            extensions=self._extensions,
        )
        if cookies:
            cookies.set_cookie_header(request)
        return request

    def _is_like(self, other: SentRequest) -> bool:
        ours, theirs = self._headers.raw, other._headers.raw
        return (self._url, self._extensions, ours) == (other._url, other._extensions, theirs)
