"""Users, logins and chats in a fresh database, so that a measured server has never seen a request before."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from flask import Flask, session
from flask.sessions import SecureCookieSessionInterface
from flask_wtf.csrf import generate_csrf
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from agentapp import config
from agentapp.app import create_app
from agentapp.isolation import ThreadBinder, new_id
from agentapp.storage import migrate
from agentapp.storage.db import Database
from agentapp.storage.models import ChatSession, Login, Tenant
from agentapp.storage.models import User as UserRow
from agentapp.storage.opened_logins import LOGIN_LIFETIME
from agentapp.storage.values import User
from agentapp.web.auth import start_login
from bench.turns import naive
from bench.turns.plans import Person

PEOPLE = 1000
TENANTS = 8


def chats_of(n: int) -> int:
    """Who talks more has more chats, so that each stays a few turns long: a long one costs more."""
    return 64 if n == 0 else 8 if n < 128 else 2 if n < 512 else 1


def add_people(instance: Path, database_url: str | None = None, count: int = PEOPLE) -> list[Person]:
    """With tables, and a secret in the instance directory, with which their cookies are signed.

    Straight into the tables: to sign in takes a tenth of a second of CPU each.
    """
    chosen = {"AGENTAPP_INSTANCE": str(instance)}
    if database_url:
        chosen["AGENTAPP_DATABASE_URL"] = database_url
    settings = config.load(chosen, bind="127.0.0.1:8000")
    migrate.upgrade(settings.database_url)
    app, db = create_app(settings), Database(settings.database_url, ThreadBinder())
    try:
        with db.writing() as rows:
            return _add_people(app, rows, count)
    finally:
        db.close()
        app.extensions["agentapp"].db.close()


def _add_people(app: Flask, rows: Session, count: int) -> list[Person]:
    tenants = [Tenant(id=new_id(), name=f"tenant{n}", created_at=datetime.now(UTC)) for n in range(TENANTS)]
    rows.add_all(tenants)
    rows.flush()
    people = []
    for n in range(count):
        tenant = tenants[n % TENANTS]
        user = User(new_id(), tenant.id, tenant.name, f"user{n}", "member", False)
        token = secrets.token_urlsafe(32)
        _add_user(rows, user, token)
        chats = [_add_chat(rows, user) for _ in range(chats_of(n))]
        cookie, csrf = _cookie_and_token(app, user, token)
        people.append(Person(cookie, csrf, tuple(f"/chat/{chat}/messages" for chat in chats)))
    return people


def _add_user(rows: Session, user: User, token: str) -> None:
    now = datetime.now(UTC)
    rows.add(
        UserRow(
            id=user.id,
            tenant_id=user.tenant_id,
            name=user.name,
            password_hash="none",
            role=user.role,
            created_at=now,
        )
    )
    rows.flush()
    digest = sha256(token.encode()).hexdigest()
    rows.add(Login(digest=digest, user_id=user.id, created_at=now, expires_at=now + LOGIN_LIFETIME))


def _add_chat(rows: Session, user: User) -> str:
    now, owner = datetime.now(UTC), {"tenant_id": user.tenant_id, "user_id": user.id}
    chat = ChatSession(id=new_id(), title="New chat", created_at=now, updated_at=now, **owner)
    rows.add(chat)
    return chat.id


def _cookie_and_token(app: Flask, user: User, token: str) -> tuple[str, str]:
    """What a browser has after it has signed in."""
    with app.test_request_context():
        start_login(user, token)
        csrf = generate_csrf()
        signer = SecureCookieSessionInterface().get_signing_serializer(app)
        assert signer is not None
        return f"{app.config['SESSION_COOKIE_NAME']}={signer.dumps(dict(session))}", csrf


def add_naive_people(database_url: str) -> list[Person]:
    engine = create_engine(database_url)
    naive.Base.metadata.create_all(engine)
    people = []
    with Session(engine) as rows:
        for n in range(PEOPLE):
            token = secrets.token_urlsafe(32)
            rows.add(naive.User(cookie=token))
            paths = tuple(f"/chat/{new_id()}/messages" for _ in range(chats_of(n)))
            people.append(Person(f"session={token}", "", paths))
        rows.commit()
    engine.dispose()
    return people


def strangers(path: str) -> list[Person]:
    """For a server that knows nobody."""
    return [Person("", "", (path,))] * PEOPLE
