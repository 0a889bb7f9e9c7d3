"""Input, checked at the edge: encoding, type, length. Bad input is a 4xx and never reaches anything below."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from flask import Flask, g, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.routing import BaseConverter

from agentapp.errors import BadRequest, InvalidMessage, MessageTooLong

MAX_BODY = 1024 * 1024
MAX_MESSAGE = 32_000
MAX_TITLE = 200
MAX_KEY = 128


class IdConverter(BaseConverter):
    """An id of ours in a path. Anything that cannot be one is not found, without asking the database."""

    regex = "[A-Za-z0-9_-]{16,64}"


def init_app(app: Flask) -> None:
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.config["MAX_FORM_MEMORY_SIZE"] = MAX_BODY
    app.url_map.converters["id"] = IdConverter
    app.before_request(check_encoding)
    app.before_request(check_names)


def check_encoding() -> None:
    """Werkzeug replaces bytes that are not UTF-8 in silence. We would rather say so."""
    _decoded(unquote_to_bytes(request.query_string))
    if request.method in ("POST", "PUT", "PATCH"):
        body = _whole_body()
        plain_form = request.mimetype == "application/x-www-form-urlencoded"
        _decoded(unquote_to_bytes(body) if plain_form else body)


def check_names() -> None:
    """A part of a multipart form may lack a name, and the check of the token fails at that."""
    if any(name is None for name in request.form):
        raise BadRequest("A part of the form has no name.")


def field(name: str, *, most: int, default: str | None = None) -> str:
    """One field of the body, form-encoded or JSON, as a string that every layer below can hold."""
    value = _body().get(name, default)
    if value is None:
        raise BadRequest(f"The field {name!r} is missing.")
    return _checked(name, value, most)


def message_field() -> str:
    """The user's message, with line ends as everywhere else and nothing else changed."""
    value = _body().get("message")
    if not isinstance(value, str):
        raise InvalidMessage("A message must be text.")
    if len(value) > MAX_MESSAGE:
        raise MessageTooLong(
            f"A message has at most {MAX_MESSAGE:,} characters; this one has {len(value):,}."
        )
    try:
        text = _checked("message", value, MAX_MESSAGE).replace("\r\n", "\n").replace("\r", "\n")
    except BadRequest as error:
        raise InvalidMessage(str(error)) from None
    if not text.strip():
        raise InvalidMessage("The message is empty.")
    return text


def key_field() -> str | None:
    return field("idempotency_key", most=MAX_KEY, default="") or None


def turn_field(name: str) -> str | None:
    """A turn's id, if one was sent. Whether there is such a turn, the query finds out."""
    return field(name, most=64, default="") or None


def last_event() -> int:
    """After which event to go on: as a browser asks for it, or in the address."""
    value = request.headers.get("Last-Event-ID") or request.args.get("after") or "0"
    if not (value.isascii() and value.isdigit() and len(value) <= 9):
        raise BadRequest("The number of an event is a whole number from 0 on.")
    return int(value)


def query_text(name: str, *, most: int) -> str:
    return _checked(name, request.args.get(name, ""), most).strip()


def page_number() -> int:
    value = request.args.get("page", "1")
    if not (value.isascii() and value.isdigit() and 1 <= len(value) <= 6 and int(value) >= 1):
        raise BadRequest("A page is a number from 1 on.")
    return int(value)


def local_path(target: str | None) -> str:
    """Where to go next, if it is a path on this server; the list of chats otherwise."""
    if not target or not target.startswith("/") or target.startswith(("//", "/\\")) or "\\" in target:
        return "/chat"
    if any(ord(character) < 32 for character in target) or urlsplit(target).netloc:
        return "/chat"
    return target


def json_token() -> str | None:
    """The CSRF token in a JSON body, if there is one. Whatever else is wrong with the body comes later."""
    try:
        token = _body().get("csrf_token") if request.is_json else None
    except (BadRequest, HTTPException):
        return None
    return token if isinstance(token, str) else None


def draft() -> str:
    """Whatever was typed, to be shown again beside the reason why it was refused."""
    try:
        value = _body().get("message")
    except BadRequest:
        return ""
    # Half a surrogate pair is a reason for refusal, and no page could hold it.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _whole_body() -> bytes:
    """Where the server marks the end of the input itself, as gunicorn does, werkzeug takes a body that broke
    off for a whole one, and cuts one that came in chunks at the limit.
    """
    body, promised = request.get_data(cache=True), request.content_length
    if promised is None and len(body) >= MAX_BODY:
        raise RequestEntityTooLarge
    if promised is not None and len(body) < promised:
        raise BadRequest("What was sent broke off before its end.")
    return body


def _body() -> dict[str, Any]:
    if "body" not in g:
        g.body = _json_body() if request.is_json else request.form.to_dict()
    body: dict[str, Any] = g.body
    return body


def _json_body() -> dict[str, Any]:
    try:
        body = request.get_json(cache=False)
    except RecursionError:
        raise BadRequest("The JSON is nested too deeply.") from None
    if not isinstance(body, dict):
        raise BadRequest("The JSON must be an object.")
    return body


def _checked(name: str, value: object, most: int) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"The field {name!r} must be text.")
    if len(value) > most:
        raise BadRequest(f"The field {name!r} has at most {most:,} characters.")
    if "\0" in value:
        raise BadRequest(f"The field {name!r} holds a NUL character.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(f"The field {name!r} is not valid Unicode.") from None
    return value


def _decoded(raw: bytes) -> None:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest("What was sent is not valid UTF-8.") from None
