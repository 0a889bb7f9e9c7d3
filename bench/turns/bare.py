"""The least that answers: a Flask app that forwards a message to the model, with no login and no storage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import anthropic
from flask import Flask, Response, jsonify, request
from flask.typing import ResponseReturnValue

app = Flask(__name__)
client = anthropic.Anthropic(
    api_key=os.environ.get("ANTHROPIC_API_KEY", "none"), base_url=os.environ.get("ANTHROPIC_BASE_URL")
)
MODEL, MAX_TOKENS = "claude-sonnet-4-6", 4096


@app.get("/")
def index() -> str:
    return "ok"


@app.post("/messages")
def send() -> ResponseReturnValue:
    messages = [{"role": "user", "content": request.form["message"]}]
    if request.accept_mimetypes.best == "text/event-stream":
        return Response(streamed(messages), mimetype="text/event-stream")
    answer = client.messages.create(model=MODEL, max_tokens=MAX_TOKENS, messages=messages)
    return jsonify(status="completed", reply=answer.content[0].text)


def streamed(messages: list[dict[str, str]]) -> Iterator[str]:
    reply = ""
    with client.messages.stream(model=MODEL, max_tokens=MAX_TOKENS, messages=messages) as stream:
        for text in stream.text_stream:
            reply += text
            yield event("text", text=text)
    yield event("turn_completed", status="completed", reply=reply)


def event(kind: str, **data: str) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
