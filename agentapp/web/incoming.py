"""Input is checked here first: encoding, type, length. Bad input is a 4xx and reaches no other code."""

from __future__ import annotations

from typing import cast
from urllib.parse import unquote_to_bytes, urlsplit

from flask import Flask, Request, g, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge, default_exceptions
from werkzeug.routing import BaseConverter

from agentapp.errors import BadRequest, InvalidMessage, MessageTooLong
from agentapp.server.limits import MAX_BODY_BYTES, MAX_BODY_BYTES_SIGNED_OUT, UNREADABLE
from agentapp.web.parts import this_request

MAX_MESSAGE_CHARS = 32_000
MAX_TITLE_CHARS = 200
MAX_KEY_CHARS = 128
MAX_ID_CHARS = 64
MAX_PATH_CHARS = 2048


class IdConverter(BaseConverter):
    """One of our ids in a path. A path with anything else is not found, and the database is not asked."""

    regex = "[A-Za-z0-9_-]{16,64}"


def init_app(app: Flask) -> None:
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.config["MAX_FORM_MEMORY_SIZE"] = MAX_BODY_BYTES
    app.url_map.converters["id"] = IdConverter
    app.before_request(check_request)


def check_request() -> None:
    request = this_request()
    _refuse_unreadable(request)
    _limit_body(request)
    _check_encoding(request)
    _check_part_names(request)


def _refuse_unreadable(request: Request) -> None:
    """The server could not read this request: see ``server/unreadable.py``."""
    if (problem := request.environ.get(UNREADABLE)) is not None:
        status, sentence = problem
        raise default_exceptions[status](sentence)


def _limit_body(request: Request) -> None:
    """Nobody who has not signed in has anything long to send."""
    if "user" not in g:
        request.max_content_length = MAX_BODY_BYTES_SIGNED_OUT


def _check_encoding(request: Request) -> None:
    """Without this, Werkzeug would silently replace bytes that are not UTF-8."""
    _require_utf8(unquote_to_bytes(request.query_string))
    if request.method in ("POST", "PUT", "PATCH"):
        body = _read_whole_body(request)
        plain_form = request.mimetype == "application/x-www-form-urlencoded"
        _require_utf8(unquote_to_bytes(body) if plain_form else body)


def _check_part_names(request: Request) -> None:
    """A part of a multipart form may lack a name, and then the check of the CSRF token would fail."""
    if any(name is None for name in request.form):
        raise BadRequest("A part of the form has no name.")


def field(name: str, *, max_chars: int, default: str | None = None) -> str:
    """One field of the body, form-encoded or JSON, as a string that all other code can use and store."""
    value = _body().get(name, default)
    if value is None:
        raise BadRequest(f"The field {name!r} is missing.")
    return _check_text(name, value, max_chars)


def message_field() -> str:
    """The user's message. Every line end becomes a newline; nothing else is changed."""
    value = _body().get("message")
    if not isinstance(value, str):
        raise InvalidMessage("A message must be text.")
    if len(value) > MAX_MESSAGE_CHARS:
        raise MessageTooLong(
            f"A message has at most {MAX_MESSAGE_CHARS:,} characters; this one has {len(value):,}."
        )
    try:
        text = _check_text("message", value, MAX_MESSAGE_CHARS).replace("\r\n", "\n").replace("\r", "\n")
    except BadRequest as error:
        raise InvalidMessage(str(error)) from None
    if not text.strip():
        raise InvalidMessage("The message is empty.")
    return text


def key_field() -> str | None:
    return field("idempotency_key", max_chars=MAX_KEY_CHARS, default="") or None


def turn_field(name: str) -> str | None:
    """A turn's id, if one was sent. The query finds out whether there is such a turn."""
    return field(name, max_chars=MAX_ID_CHARS, default="") or None


def next_field() -> str:
    """The path on this server that a form asks to be sent to next."""
    return local_path(field("next", max_chars=MAX_PATH_CHARS, default=""))


def last_event_number() -> int:
    """The number of the last event that the client has. A browser sends it as a header; it may also be in the
    address.
    """
    value = request.headers.get("Last-Event-ID") or request.args.get("after") or "0"
    if not _is_whole_number(value, max_digits=9):
        raise BadRequest("The number of an event is a whole number from 0 on.")
    return int(value)


def query_text(name: str, *, max_chars: int) -> str:
    return _check_text(name, request.args.get(name, ""), max_chars).strip()


def page_number() -> int:
    value = request.args.get("page", "1")
    if not _is_whole_number(value, max_digits=6) or int(value) < 1:
        raise BadRequest("A page is a number from 1 on.")
    return int(value)


def local_path(target: str | None) -> str:
    """The target, if it is a path on this server; otherwise the path of the list of chats."""
    if not target or not target.startswith("/") or target.startswith(("//", "/\\")) or "\\" in target:
        return "/chat"
    if any(ord(character) < 32 for character in target) or urlsplit(target).netloc:
        return "/chat"
    return target


def json_csrf_token() -> str | None:
    """The CSRF token in a JSON body, if there is one. Errors in the body are reported later."""
    try:
        token = _body().get("csrf_token") if request.is_json else None
    except (BadRequest, HTTPException):
        return None
    return token if isinstance(token, str) else None


def typed_message() -> str:
    """The message as it was typed, to be shown again with the reason why it was refused."""
    try:
        value = _body().get("message")
    except BadRequest:
        return ""
    # Half a surrogate pair is one of those reasons, and no page could contain it.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _read_whole_body(request: Request) -> bytes:
    """Refuses a body that is too large or that broke off.

    Werkzeug does not, if the server marks the end of the input itself, as gunicorn does: it takes a body that
    broke off for a whole one, and cuts a chunked one at the limit.
    """
    body, promised = request.get_data(cache=True), request.content_length
    if promised is None and len(body) >= (request.max_content_length or 0):
        raise RequestEntityTooLarge
    if promised is not None and len(body) < promised:
        raise BadRequest("What was sent broke off before its end.")
    return body


def _body() -> dict[str, object]:
    body = g.get("body")
    if body is None:
        sent = this_request()
        g.body = body = _json_body(sent) if sent.is_json else sent.form.to_dict()
    return cast(dict[str, object], body)


def _json_body(request: Request) -> dict[str, object]:
    try:
        body = request.get_json(cache=False)
    except RecursionError:
        raise BadRequest("The JSON is nested too deeply.") from None
    if not isinstance(body, dict):
        raise BadRequest("The JSON must be an object.")
    return body


def _check_text(name: str, value: object, max_chars: int) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"The field {name!r} must be text.")
    if len(value) > max_chars:
        raise BadRequest(f"The field {name!r} has at most {max_chars:,} characters.")
    if "\0" in value:
        raise BadRequest(f"The field {name!r} holds a NUL character.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(f"The field {name!r} is not valid Unicode.") from None
    return value


def _is_whole_number(value: str, *, max_digits: int) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= max_digits


def _require_utf8(raw: bytes) -> None:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest("What was sent is not valid UTF-8.") from None
