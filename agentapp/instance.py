"""The instance directory, which holds the secret and the SQLite file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agentapp.errors import StartError

MIN_SECRET_BYTES = 32


def prepare(instance: Path) -> None:
    """Make the directory, or say plainly why it cannot be made or used."""
    try:
        instance.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise StartError(f"cannot make the directory {instance}: {exc.strerror}") from exc
    if not os.access(instance, os.W_OK | os.X_OK):
        raise StartError(
            f"cannot write to the directory {instance}: set AGENTAPP_INSTANCE to one that can be"
        )


def kept_secret(instance: Path) -> str:
    """The secret of this instance. It is made the first time; several workers may ask for it at once."""
    prepare(instance)
    path = instance / "secret"
    try:
        if not path.exists():
            _write_secret(path)
        secret = path.read_text().strip()
    except OSError as exc:
        raise StartError(f"cannot keep a secret in {path}: {exc.strerror}") from exc
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise StartError(f"{path} holds less than {MIN_SECRET_BYTES} bytes: delete it to have a new one made")
    return secret


def _write_secret(path: Path) -> None:
    """Write a new secret, unless another process writes one first."""
    unfinished = path.with_name(f"secret.{os.getpid()}.{secrets.token_hex(4)}")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(48))
    try:
        os.link(unfinished, path)  # atomic, and fails if another process was first
    except FileExistsError:
        pass
    finally:
        unfinished.unlink()


def long_enough_secret(value: str) -> str:
    if len(value.encode()) < MIN_SECRET_BYTES:
        raise ValueError(f"must be {MIN_SECRET_BYTES} bytes or more")
    return value
