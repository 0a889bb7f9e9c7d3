"""Where a request comes from: which name of this server it asks for, and which site's page sent it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask, Request, Response

from agentapp.errors import ForeignOrigin, UnknownHost
from agentapp.parsing import ADDRESSES, host_name, is_one_of_hosts
from agentapp.web.parts import parts, this_request

log = logging.getLogger(__name__)

REFUSED = "agentapp.refused_host"  # in the request's environ
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
# A load balancer asks by an address, which is not one of our names. What these answer is the same for all.
FOR_ANY_HOST = frozenset(("health.livez", "health.readyz"))
# Sent by our own pages, or by no page at all: a person typed the address. Not "same-site", which is a
# neighbour under the same domain.
TRUSTED_SITES = frozenset(("same-origin", "none"))


def init_app(app: Flask) -> None:
    names = app.extensions["agentapp"].settings.hosts
    if ADDRESSES in names:
        log.warning("AGENTAPP_HOSTS is not set: this server answers to localhost and to IP addresses only")
    app.wsgi_app = HostFilter(app.wsgi_app, names)  # type: ignore[method-assign]
    app.before_request(check_sender)
    app.after_request(lead_to_a_path)


class HostFilter:
    """Takes a Host out that is not ours, before anything can repeat it, use it or stumble over it."""

    def __init__(self, app: WSGIApplication, names: Collection[str]) -> None:
        self._app, self._names = app, names

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not self._is_ours(environ.get("HTTP_HOST", "")):
            environ["HTTP_HOST"] = "localhost"
            environ[REFUSED] = True
        return self._app(environ, start_response)

    def _is_ours(self, host: str) -> bool:
        if self._names:
            return is_one_of_hosts(host, self._names)
        return not host or host_name(host) is not None


def check_sender() -> None:
    request = this_request()
    _check_host(request)
    _check_origin(request)


def _check_host(request: Request) -> None:
    """A page that has another name point to this server (DNS rebinding) must not reach it by that name."""
    if REFUSED in request.environ and request.endpoint not in FOR_ANY_HOST:
        raise UnknownHost(
            "This server does not answer to the name that it was asked by. Its operator can add the name to "
            "AGENTAPP_HOSTS."
        )


def _check_origin(request: Request) -> None:
    """What changes something must not come from another site's page, whatever token it has.

    Browsers say by themselves which page it was; no script in a page can change that. Scripts outside of
    a browser say nothing.
    """
    if request.method in SAFE_METHODS:
        return
    environ = request.environ
    site, origin = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_ORIGIN")
    if site in TRUSTED_SITES or (site is None and origin in (None, _own_origin(request))):
        return
    raise ForeignOrigin(
        "This was sent by a page of another site, so nothing was done. Open this site itself and send from "
        "there. If this is that site, its proxy does not pass on the Host header."
    )


def _own_origin(request: Request) -> str:
    """As browsers write it: without the port that the scheme has anyway."""
    scheme = "https" if parts().settings.https else request.scheme
    default_port = ":443" if scheme == "https" else ":80"
    return f"{scheme}://{request.environ.get('HTTP_HOST', '').lower().removesuffix(default_port)}"


def lead_to_a_path(response: Response) -> Response:
    """Flask's own redirects, such as of ``//chat``, begin with the Host header."""
    if "Location" not in response.headers:
        return response
    there = urlsplit(response.location or "")
    if there.netloc:
        response.location = "/" + there._replace(scheme="", netloc="").geturl().lstrip("/")
    return response
