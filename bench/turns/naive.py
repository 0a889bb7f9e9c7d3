"""The same with the storage that one writes in an afternoon: a cookie, users and messages in SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from flask import Flask, Response, abort, jsonify, request
from flask.typing import ResponseReturnValue
from sqlalchemy import ForeignKey, create_engine, select
from sqlalchemy.event import listens_for
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from bench.turns.bare import MAX_TOKENS, MODEL, client, event, index

app = Flask(__name__)
app.get("/")(index)


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    cookie: Mapped[str] = mapped_column(unique=True)


class Message(Base):
    __tablename__ = "messages"
    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    chat: Mapped[str] = mapped_column(index=True)
    role: Mapped[str]
    content: Mapped[str]
    created_at: Mapped[datetime]


# A connection for each of a worker's threads, and patience: with the defaults most of a crowd gets a 500.
engine = create_engine(
    "sqlite:///naive.sqlite3", pool_size=20, max_overflow=500, connect_args={"timeout": 60}
)


@listens_for(engine, "connect")
def let_readers_in(connection: Any, _: object) -> None:
    """The first advice that one finds about SQLite in a server."""
    connection.execute("PRAGMA journal_mode=WAL")


Session = sessionmaker(engine)


@app.post("/chat/<chat>/messages")
def send(chat: str) -> ResponseReturnValue:
    with Session() as db:
        user = db.scalar(select(User).where(User.cookie == request.cookies.get("session", "")))
        if user is None:
            abort(401)
        user_id = user.id
        db.add(message(user_id, chat, "user", request.form["message"]))
        db.commit()
        rows = db.scalars(
            select(Message).where(Message.user_id == user_id, Message.chat == chat).order_by(Message.id)
        )
        history = [{"role": row.role, "content": row.content} for row in rows]
    if request.accept_mimetypes.best == "text/event-stream":
        return Response(streamed(user_id, chat, history), mimetype="text/event-stream")
    answer = client.messages.create(model=MODEL, max_tokens=MAX_TOKENS, messages=history)
    store(user_id, chat, answer.content[0].text)
    return jsonify(status="completed", reply=answer.content[0].text)


def streamed(user_id: int, chat: str, history: list[dict[str, str]]) -> Iterator[str]:
    reply = ""
    with client.messages.stream(model=MODEL, max_tokens=MAX_TOKENS, messages=history) as stream:
        for text in stream.text_stream:
            reply += text
            yield event("text", text=text)
    store(user_id, chat, reply)
    yield event("turn_completed", status="completed", reply=reply)


def store(user_id: int, chat: str, reply: str) -> None:
    with Session() as db:
        db.add(message(user_id, chat, "assistant", reply))
        db.commit()


def message(user_id: int, chat: str, role: str, content: str) -> Message:
    return Message(user_id=user_id, chat=chat, role=role, content=content, created_at=datetime.now(UTC))
