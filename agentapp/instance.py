"""The instance directory, which holds the secret and the SQLite file; and files that nobody else may read."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from agentapp.errors import StartError

MIN_SECRET_BYTES = 32
PRIVATE_UMASK = 0o077  # for every process that makes files here

log = logging.getLogger(__name__)


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


def make_private(files: Iterable[Path]) -> None:
    """Take from everybody else what they may do with these files, and say so if there was something to take.

    The directory is not changed: whoever made it wider may have had a reason, and what is in it is private.
    """
    changed = []
    for file in files:
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & PRIVATE_UMASK:
                file.chmod(mode & ~PRIVATE_UMASK)
                changed.append(file)
        except FileNotFoundError:
            pass  # the database's -wal and -shm files come and go
        except OSError as exc:
            log.warning("others may read %s, and that cannot be changed: %s", file, exc.strerror)
    if changed:
        log.warning("others could use %s: made private", ", ".join(map(str, changed)))


def kept_secret(instance: Path) -> str:
    """The secret of this instance. It is made the first time; several workers may ask for it at once."""
    prepare(instance)
    path = instance / "secret"
    try:
        if not path.exists():
            _write_secret(path)
        make_private([path])
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
