"""What has to be true of a Redis before it is used: its version, and what our user may do there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import (
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from agentapp.storage.redis_connection import NO_ANSWER, Command, Pool

OLDEST = (6, 2)
PROBE_MS = 10_000  # what is written to try it is gone by itself
# Errors that would meet every command, or every one that writes: the whole Redis is of no use then.
ABOUT_ALL = (ClusterDownError, NoPermissionError, OutOfMemoryError, ReadOnlyError)
ABOUT_ALL_TEXTS = ("BUSY ", "MISCONF ", "MOVED ", "NOAUTH ", "NOREPLICAS ", "MASTERDOWN ", "UNKILLABLE ")


def is_about_all_commands(answer: Exception) -> bool:
    return isinstance(answer, ABOUT_ALL) or str(answer).startswith(ABOUT_ALL_TEXTS)


def problem_of(pool: Pool, key: str) -> str | None:
    """Why this Redis cannot be used now, for the operator; None if it can. Something of every kind that we do
    there is done, under that key: so it may also be written to.
    """
    try:
        (server,) = pool.exchange([("INFO", "server")])
        problem = problem_said(server)
        return problem or _first_refused(pool, _kinds_of_commands(key))
    except NO_ANSWER as error:
        return said(error)


def said(error: Exception) -> str:
    """Some errors of a socket have no words of their own."""
    return f"{error}" or type(error).__name__


def problem_said(server: Any) -> str | None:
    """What is wrong with a server that answers this to ``INFO server``."""
    if isinstance(server, ResponseError):
        return f"INFO is refused: {server}"
    info = facts(server)
    version = info.get("redis_version", "")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        return f"it is version {version or 'unknown'}, and {'.'.join(map(str, OLDEST))} or later is needed"
    if info.get("redis_mode") == "cluster":
        return "it is a cluster, and its commands are about several keys: a single server is needed"
    return None


def facts(info: bytes) -> dict[str, str]:
    """What ``INFO`` answers, by name."""
    lines = info.decode(errors="replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def _kinds_of_commands(key: str) -> list[Command]:
    """Each key lives for some seconds only: if the last commands are refused, nothing stays."""
    stream = f"{key}:stream"
    return [
        ("SET", key, "1", "PX", PROBE_MS),
        ("GET", key),
        ("PEXPIRE", key, PROBE_MS),
        ("EVAL", "return redis.call('PTTL', KEYS[1])", 1, key),
        ("XADD", stream, "MAXLEN", "~", 1, "*", "a", "1"),
        ("PEXPIRE", stream, PROBE_MS),
        ("XRANGE", stream, "-", "+", "COUNT", 1),
        ("XREAD", "COUNT", 1, "STREAMS", stream, "0"),
        ("HSET", f"{key}:hash", "a", "1"),
        ("PEXPIRE", f"{key}:hash", PROBE_MS),
        ("HMGET", f"{key}:hash", "a"),
        ("RPUSH", f"{key}:list", "1"),
        ("PEXPIRE", f"{key}:list", PROBE_MS),
        ("LRANGE", f"{key}:list", 0, 0),
        ("DEL", key, stream, f"{key}:hash", f"{key}:list"),
        ("EVALSHA", "0" * 40, 0),
    ]


def _first_refused(pool: Pool, commands: Sequence[Command]) -> str | None:
    for command, answer in zip(commands, pool.exchange(commands), strict=True):
        if isinstance(answer, ResponseError) and "No matching script" not in str(answer):
            return f"{command[0]!s} is refused: {answer}"
    return None
