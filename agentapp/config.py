"""Settings: read from the environment once, checked, frozen."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agentapp.errors import SettingError, StartError

T = TypeVar("T")

MIN_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting there is. `load` makes one from the environment; tests make their own."""

    instance: Path
    database_url: str
    secret_key: str = field(repr=False)
    https: bool = False
    trusted_proxies: int = 0
    provider: str = "demo"
    model: str = "claude-sonnet-4-6"
    anthropic_api_key: str | None = field(default=None, repr=False)
    anthropic_base_url: str | None = None
    team: str = "agentapp.agents.shipped:team"
    turn_deadline: float = 120.0
    first_token_deadline: float = 30.0
    gap_deadline: float = 15.0
    tool_deadline: float = 5.0
    turn_tokens: int = 50_000
    demo_delay: float = 0.02


def load(environ: Mapping[str, str] | None = None, *, bind: str = "127.0.0.1:8000") -> Settings:
    """Read and check every variable. The first bad one is a `SettingError` that names it."""
    env = Reader(os.environ if environ is None else environ)
    instance = Path(env.text("AGENTAPP_INSTANCE", "instance")).absolute()
    api_key = env.text("ANTHROPIC_API_KEY", "") or None
    provider = env.choice("AGENTAPP_PROVIDER", "auto", ("auto", "anthropic", "demo"))
    if provider == "auto":
        provider = "anthropic" if api_key else "demo"
    if provider == "anthropic" and not api_key:
        raise SettingError("ANTHROPIC_API_KEY", "needed because AGENTAPP_PROVIDER is 'anthropic'")
    return Settings(
        instance=instance,
        database_url=_database_url(env, instance),
        secret_key=_secret_key(env, instance, bind),
        https=env.parsed("AGENTAPP_HTTPS", "0", _flag),
        trusted_proxies=env.parsed("AGENTAPP_TRUSTED_PROXIES", "0", whole(0, 10)),
        provider=provider,
        model=env.text("AGENTAPP_MODEL", "claude-sonnet-4-6"),
        anthropic_api_key=api_key,
        anthropic_base_url=env.text("ANTHROPIC_BASE_URL", "") or None,
        team=env.parsed("AGENTAPP_TEAM", "agentapp.agents.shipped:team", _dotted),
        turn_deadline=env.parsed("AGENTAPP_TURN_DEADLINE", "120", seconds),
        first_token_deadline=env.parsed("AGENTAPP_FIRST_TOKEN_DEADLINE", "30", seconds),
        gap_deadline=env.parsed("AGENTAPP_GAP_DEADLINE", "15", seconds),
        tool_deadline=env.parsed("AGENTAPP_TOOL_DEADLINE", "5", seconds),
        turn_tokens=env.parsed("AGENTAPP_BUDGET_TURN_TOKENS", "50000", whole(1_000, 100_000_000)),
        demo_delay=env.parsed("AGENTAPP_DEMO_DELAY", "0.02", _pause),
    )


def prepare_instance(instance: Path) -> None:
    """Make the directory that holds the secret and the SQLite file, or say plainly why it cannot be."""
    try:
        instance.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise StartError(f"cannot make the directory {instance}: {exc.strerror}") from exc
    if not os.access(instance, os.W_OK | os.X_OK):
        raise StartError(
            f"cannot write to the directory {instance}: set AGENTAPP_INSTANCE to one that can be"
        )


def is_loopback(bind: str) -> bool:
    """True for an address only this machine can reach: loopback, or a Unix socket."""
    if bind.startswith("unix:"):
        return True
    host = bind.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Reader:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, variable: str, default: str) -> str:
        return self._environ.get(variable, "").strip() or default

    def choice(self, variable: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(variable, default)
        if value not in allowed:
            raise SettingError(variable, f"must be one of {', '.join(allowed)}; not {value!r}")
        return value

    def parsed(self, variable: str, default: str, parse: Callable[[str], T]) -> T:
        value = self.text(variable, default)
        try:
            return parse(value)
        except ValueError as exc:
            raise SettingError(variable, f"{exc}; not {value!r}") from None


def _database_url(env: Reader, instance: Path) -> str:
    variable = "AGENTAPP_DATABASE_URL"
    url = env.text(variable, f"sqlite:///{instance / 'agentapp.sqlite3'}")
    if url.startswith("postgresql+psycopg://") or _names_a_file(url):
        return url
    raise SettingError(variable, "must begin with 'postgresql+psycopg://' or 'sqlite:///' and name a file")


def _names_a_file(url: str) -> bool:
    """An in-memory database would be another one in every worker."""
    file = url.removeprefix("sqlite:///")
    return file not in ("", url) and not file.startswith((":memory:", "file:", "?"))


def _secret_key(env: Reader, instance: Path, bind: str) -> str:
    variable = "AGENTAPP_SECRET_KEY"
    secret = env.text(variable, "")
    if secret:
        if len(secret.encode()) < MIN_SECRET_BYTES:
            raise SettingError(variable, f"must be {MIN_SECRET_BYTES} bytes or more")
        return secret
    if not is_loopback(bind):
        raise SettingError(variable, f"required when serving on {bind}, which is not a loopback address")
    return _kept_secret(instance)


def _kept_secret(instance: Path) -> str:
    """The secret made once for this instance. Several workers may come here at the same moment."""
    prepare_instance(instance)
    path = instance / "secret"
    fresh = instance / f"secret.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        if not path.exists():
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(48))
            try:
                os.link(fresh, path)  # atomic, and fails if somebody else was first
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        secret = path.read_text().strip()
    except OSError as exc:
        raise StartError(f"cannot keep a secret in {path}: {exc.strerror}") from exc
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise StartError(f"{path} holds less than {MIN_SECRET_BYTES} bytes: delete it to have a new one made")
    return secret


def _flag(value: str) -> bool:
    if value not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return value == "1"


def whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.isascii() or not value.isdigit() or not low <= int(value) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return parse


def _number(value: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise ValueError(f"must be a number of seconds from {low:g} to {high:g}")
    return number


def seconds(value: str) -> float:
    return _number(value, 0.1, 3600)


def _pause(value: str) -> float:
    return _number(value, 0, 10)


def _dotted(value: str) -> str:
    module, colon, name = value.partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError("must look like package.module:name")
    return value
