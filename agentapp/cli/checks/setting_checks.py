"""The settings: all that are bad, and those that are risky together."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from urllib.parse import urlsplit

from agentapp import config
from agentapp.cli.checks.line import Line, do, note, ok
from agentapp.config import Settings
from agentapp.config.webhook import SHORT_KEY_BYTES
from agentapp.errors import SettingError
from agentapp.instance import MIN_SECRET_BYTES, PRIVATE_UMASK
from agentapp.parsing import ADDRESSES, is_loopback, settings_of
from agentapp.server import options
from agentapp.server.options import ServerOptions
from agentapp.storage.schema import engine_for

SECRET_KEY = "AGENTAPP_SECRET_KEY"  # noqa: S105 - the name of a variable
NO_SECRET = "-" * MIN_SECRET_BYTES  # with it, loading the settings makes none


def bad_settings(environ: Mapping[str, str], bind: str | None) -> Iterator[SettingError]:
    """All of them, each for itself; else what is wrong with them together."""
    found = False
    for owner in (ServerOptions, Settings):
        for declared in settings_of(owner).values():
            if declared.is_set(environ):
                try:
                    declared.read(environ)
                except SettingError as error:
                    found = True
                    yield error
    if found:
        return
    try:
        settings, _ = load(environ, bind)
        engine_for(settings.database_url).dispose()
    except SettingError as error:
        yield error


def load(environ: Mapping[str, str], bind: str | None) -> tuple[Settings, ServerOptions]:
    """As `agentapp serve` would with that ``--bind``, but nothing is made: no directory and no secret."""
    server = options.load(environ, {"bind": bind})
    missing = not environ.get(SECRET_KEY, "").strip()
    if missing and not is_loopback(server.bind):
        raise SettingError(SECRET_KEY, f"required when serving on {server.bind}")
    settings = config.load({**environ, SECRET_KEY: NO_SECRET} if missing else environ, bind=server.bind)
    return settings, server


def check_settings(environ: Mapping[str, str]) -> Iterator[Line]:
    declared = {each.variable for owner in (ServerOptions, Settings) for each in settings_of(owner).values()}
    unknown = sorted(name for name in environ if name.startswith("AGENTAPP_") and name not in declared)
    for name in unknown:
        meant = get_close_matches(name, declared, n=1)
        hint = f": did you mean {meant[0]}?" if meant else ""
        yield do("settings", f"{name} is no setting, and has no effect{hint}")
    if not unknown:
        used = sum(1 for name in declared if environ.get(name, "").strip())
        yield ok("settings", f"{used} set, the others have their defaults")


def check_secret(environ: Mapping[str, str], settings: Settings) -> Line:
    if environ.get(SECRET_KEY, "").strip():
        return ok("secret", f"from {SECRET_KEY}")
    path = settings.instance / "secret"
    try:
        mode, secret = stat.S_IMODE(path.stat().st_mode), path.read_text().strip()
    except FileNotFoundError:
        return ok("secret", f"{path} will be made at the first start")
    except (OSError, UnicodeDecodeError) as error:
        return do("secret", f"{path} cannot be read ({type(error).__name__}): run this as the server's user")
    if len(secret.encode()) < MIN_SECRET_BYTES:
        text = f"{path} holds less than {MIN_SECRET_BYTES} bytes"
        return do("secret", f"{text}: delete it to have a new one made")
    if mode & PRIVATE_UMASK:
        return do("secret", f"others may use {path} (mode {mode:04o}): chmod 600 {path}")
    return ok("secret", f"in {path}, for its owner alone")


def check_address(settings: Settings, server: ServerOptions) -> Iterator[Line]:
    """Where it listens, and what that takes."""
    bind = server.bind
    if is_loopback(bind):
        yield ok("address", f"{bind}: for this machine only, and for a proxy on it")
    elif ADDRESSES in settings.hosts:
        text = "any machine may ask, but only by an IP address: set AGENTAPP_HOSTS to the server's names"
        yield do("address", f"{bind}: {text}")
    else:
        yield ok("address", f"{bind}: answers to {', '.join(settings.hosts)}")
    yield _https(settings, server)
    yield _proxies(settings, server)
    yield _metrics(settings, server)
    yield _alerts(settings, server)


def _https(settings: Settings, server: ServerOptions) -> Line:
    if settings.https:
        return ok("https", "cookies only by TLS, which a proxy in front must speak")
    if not is_loopback(server.bind):
        text = "passwords and cookies cross the network readable: put a proxy with TLS in front, and set"
        return do("https", f"{text} AGENTAPP_HTTPS=1")
    if settings.trusted_proxies:
        return note("https", "if the proxy in front speaks TLS, set AGENTAPP_HTTPS=1")
    return ok("https", "not needed on this machine itself")


def _proxies(settings: Settings, server: ServerOptions) -> Line:
    hops = settings.trusted_proxies
    if hops and is_loopback(server.bind):
        return ok("proxies", f"the last {hops} of X-Forwarded-For, -Proto and -Host are believed")
    if hops:
        text = f"{server.bind} must be reachable for the proxy alone: whoever else reaches it can claim to be"
        return note("proxies", f"{text} anybody by X-Forwarded-For")
    if settings.https:
        text = "every client seems to have the proxy's address, so limits by address hold for all together"
        return do("proxies", f"{text}: set AGENTAPP_TRUSTED_PROXIES to the number of proxies in front")
    return ok("proxies", "none; forwarded addresses are not believed")


def _metrics(settings: Settings, server: ServerOptions) -> Line:
    if settings.metrics_token:
        return ok("metrics", "/metrics answers to who has the token")
    if is_loopback(server.bind) and not settings.https:
        return ok("metrics", "/metrics answers this machine only")
    text = "/metrics answers this machine only: set AGENTAPP_METRICS_TOKEN if Prometheus is on another"
    return note("metrics", text)


def _alerts(settings: Settings, server: ServerOptions) -> Line:
    """Without the path of the webhook: with many services, who knows it may send there."""
    if settings.alert_webhook:
        sent = f"sent, signed, to {urlsplit(settings.alert_webhook).hostname}"
        if len(settings.alert_webhook_secret or b"") >= SHORT_KEY_BYTES:
            return ok("alerts", sent)
        return note("alerts", f"{sent}. AGENTAPP_ALERT_WEBHOOK_SECRET is short: it could be guessed")
    text = "nobody is told of them: they are on /admin/alerts and in the log"
    if is_loopback(server.bind) and not settings.https:
        return ok("alerts", text)
    return note("alerts", f"{text}. AGENTAPP_ALERT_WEBHOOK sends them somewhere")
