"""A running server as its users reach it: by its address, through whatever proxies are in front. Nothing is
sent that could change anything.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from http.client import HTTPException
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from agentapp.cli.checks.asking import Answer, ask
from agentapp.cli.checks.line import Line, do, ok

PROXY = "the proxy must pass it on (nginx: proxy_set_header Host $http_host)"


def check_served(url: str) -> Iterator[Line]:
    """``url`` is what people type: its scheme and its host."""
    there = urlsplit(url)
    try:
        alive = ask(there, "GET", "/livez")
        if alive.status != 200 or alive.body.strip() != b"alive":
            text = (
                f"{url} answers {alive.status}, and not as agentapp: does the proxy lead to it, and is it up?"
            )
            yield do("served", text)
            return
        yield from _look(there, url)
    except ssl.SSLError as error:
        yield do("served", f"{url}: TLS fails ({error.reason or type(error).__name__})")
    except (OSError, HTTPException, ValueError) as error:
        yield do("served", f"{url} cannot be reached ({type(error).__name__})")


def _look(there: SplitResult, url: str) -> Iterator[Line]:
    ready = ask(there, "GET", "/readyz")
    if ready.status == 200:
        yield ok("served", f"{url} is alive and ready")
    else:
        yield do("served", f"{url} is alive, but not ready ({ready.detail or ready.status})")
    page = ask(there, "GET", "/login")
    if page.status == 400:
        text = f"the server does not answer to {there.hostname}: AGENTAPP_HOSTS must have it"
        yield do("served host", f"{text}, and {PROXY}")
        return
    yield ok("served host", f"the server answers to {there.hostname}")
    yield _forms(there)
    yield _https(there, page)
    yield _metrics(there)


def _forms(there: SplitResult) -> Line:
    """Without a token both are refused; but its own page's for that reason only."""
    own = ask(there, "POST", "/theme", {"Origin": _origin_of(there)})
    foreign = ask(there, "POST", "/theme", {"Origin": "https://another-site.invalid"})
    if own.detail is not None and own.detail != foreign.detail:
        return ok("served forms", "forms of its own pages are taken")
    text = "the server takes its own pages for another site's, so nobody can sign in: it must see the Host"
    return do("served forms", f"{text} that the browser sends, and AGENTAPP_HTTPS=1 behind TLS; {PROXY}")


def _https(there: SplitResult, page: Answer) -> Line:
    cookie = page.headers.get("set-cookie", "")
    is_secure = "secure" in [part.strip().lower() for part in cookie.split(";")[1:]]
    if there.scheme == "https":
        if is_secure and "strict-transport-security" in page.headers:
            return ok("served https", "the cookie is for TLS only, and browsers are told to stay with it")
        return do(
            "served https", "the cookie may travel readable, and there is no HSTS: set AGENTAPP_HTTPS=1"
        )
    if is_secure:
        return do(
            "served https", "AGENTAPP_HTTPS is 1, so nobody can sign in by http://: lead it to https://"
        )
    if _is_this_machine(there.hostname or ""):
        return ok("served https", "not needed on this machine itself")
    return do("served https", "passwords and cookies cross the network readable: put TLS in front")


def _metrics(there: SplitResult) -> Line:
    if ask(there, "GET", "/metrics").status == 200 and not _is_this_machine(there.hostname or ""):
        text = "anybody may read /metrics there, because the proxy does not say for whom it asks: set"
        return do("served metrics", f"{text} AGENTAPP_METRICS_TOKEN, or X-Forwarded-For in the proxy")
    return ok("served metrics", "not for everybody")


def _origin_of(there: SplitResult) -> str:
    """As a browser writes it: without the port that the scheme has anyway."""
    default_port = ":443" if there.scheme == "https" else ":80"
    return f"{there.scheme}://{there.netloc.lower().removesuffix(default_port)}"


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
