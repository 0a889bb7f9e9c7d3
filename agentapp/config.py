"""Settings: read from the environment once, checked, frozen."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agentapp.errors import SettingError, StartError
from agentapp.reading import (
    Reader,
    flag,
    long_seconds,
    microusd,
    or_off,
    pause,
    prices,
    rate,
    seconds,
    share,
    whole,
)

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
    turn_tokens: int | None = 50_000
    demo_delay: float = 0.02
    threads: int = 512
    threads_reserved: int = 8
    breaker_failures: int = 3
    breaker_cooldown: float = 30.0
    breaker_cooldown_max: float = 900.0
    breaker_share: float | None = None
    breaker_window: float = 60.0
    breaker_user_failures: int = 15
    provider_breaker_users: int = 5
    provider_breaker_share: float = 0.5
    provider_breaker_window: float = 30.0
    rate_session: tuple[int, float] | None = (20, 60.0)
    rate_user: tuple[int, float] | None = (60, 60.0)
    rate_tenant: tuple[int, float] | None = (600, 60.0)
    rate_login: tuple[int, float] | None = (10, 900.0)
    session_tokens: int | None = 1_000_000
    user_day_microusd: int | None = 5_000_000
    tenant_month_microusd: int | None = 500_000_000
    prices: tuple[tuple[str, float, float], ...] = ()
    concurrent_user: int | None = 4
    concurrent_tenant: int | None = None
    tool_calls_turn: int | None = 20
    tool_calls_session: int | None = None
    registry_cap: int = 1_000
    registry_cleanup_every: int = 100


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
        https=env.parsed("AGENTAPP_HTTPS", "0", flag),
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
        demo_delay=env.parsed("AGENTAPP_DEMO_DELAY", "0.02", pause),
        threads=env.parsed("AGENTAPP_THREADS", "512", whole(1, 4096)),
        threads_reserved=env.parsed("AGENTAPP_THREADS_RESERVED", "8", whole(0, 4095)),
        **_breakers(env),
        **_limits(env),
    )


def _breakers(env: Reader) -> dict[str, Any]:
    cooldown = env.parsed("AGENTAPP_BREAKER_COOLDOWN", "30", seconds)
    longest = env.parsed("AGENTAPP_BREAKER_COOLDOWN_MAX", str(max(900.0, cooldown)), long_seconds)
    if longest < cooldown:
        raise SettingError(
            "AGENTAPP_BREAKER_COOLDOWN_MAX", f"must be at least AGENTAPP_BREAKER_COOLDOWN, {cooldown:g}"
        )
    return {
        "breaker_failures": env.parsed("AGENTAPP_BREAKER_FAILURES", "3", whole(1, 1_000)),
        "breaker_cooldown": cooldown,
        "breaker_cooldown_max": longest,
        "breaker_share": env.parsed("AGENTAPP_BREAKER_SHARE", "off", or_off(share)),
        "breaker_window": env.parsed("AGENTAPP_BREAKER_WINDOW", "60", seconds),
        "breaker_user_failures": env.parsed("AGENTAPP_BREAKER_USER_FAILURES", "15", whole(1, 100_000)),
        "provider_breaker_users": env.parsed("AGENTAPP_PROVIDER_BREAKER_USERS", "5", whole(2, 200)),
        "provider_breaker_share": env.parsed("AGENTAPP_PROVIDER_BREAKER_SHARE", "0.5", share),
        "provider_breaker_window": env.parsed("AGENTAPP_PROVIDER_BREAKER_WINDOW", "30", seconds),
    }


def _limits(env: Reader) -> dict[str, Any]:
    """`off` switches a limit off."""

    def limit(variable: str, default: str, parse: Callable[[str], T]) -> T | None:
        return env.parsed(variable, default, or_off(parse))

    return {
        "rate_session": limit("AGENTAPP_RATE_SESSION", "20/minute", rate),
        "rate_user": limit("AGENTAPP_RATE_USER", "60/minute", rate),
        "rate_tenant": limit("AGENTAPP_RATE_TENANT", "600/minute", rate),
        "rate_login": limit("AGENTAPP_RATE_LOGIN", "10/15minutes", rate),
        "turn_tokens": limit("AGENTAPP_BUDGET_TURN_TOKENS", "50000", whole(1, 10**9)),
        "session_tokens": limit("AGENTAPP_BUDGET_SESSION_TOKENS", "1000000", whole(1, 10**12)),
        "user_day_microusd": limit("AGENTAPP_BUDGET_USER_DAY_USD", "5", microusd),
        "tenant_month_microusd": limit("AGENTAPP_BUDGET_TENANT_MONTH_USD", "500", microusd),
        "prices": env.parsed("AGENTAPP_PRICES", "", prices),
        "concurrent_user": limit("AGENTAPP_CONCURRENT_USER", "4", whole(1, 100_000)),
        "concurrent_tenant": limit("AGENTAPP_CONCURRENT_TENANT", "off", whole(1, 100_000)),
        "tool_calls_turn": limit("AGENTAPP_TOOL_CALLS_TURN", "20", whole(1, 100_000)),
        "tool_calls_session": limit("AGENTAPP_TOOL_CALLS_SESSION", "off", whole(1, 10**9)),
        "registry_cap": env.parsed("AGENTAPP_REGISTRY_CAP", "1000", whole(4, 10_000_000)),
        "registry_cleanup_every": env.parsed("AGENTAPP_REGISTRY_CLEANUP_EVERY", "100", whole(1, 1_000_000)),
    }


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


def _dotted(value: str) -> str:
    module, colon, name = value.partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError("must look like package.module:name")
    return value
