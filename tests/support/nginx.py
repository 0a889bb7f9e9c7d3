"""A real nginx in front of several hosts, as in deploy/nginx: only addresses and paths differ."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

SHIPPED = Path(__file__).parents[2] / "deploy" / "nginx"
NAMES = ("agentapp.conf", "agentapp-upstream.conf", "agentapp-locations.conf")
HOSTS_THERE = ("10.77.0.11:8000", "10.77.0.12:8000")
CERTIFICATE = Path(__file__).parent / "localhost.pem"
TIMEOUT_SECONDS = 20.0
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="no nginx on this machine (Debian: nginx-light)")

# What stands around the shipped files on any machine; here all that is written goes to one directory.
AROUND = """\
{user}
worker_processes 2;
pid {home}/nginx.pid;
error_log {home}/error.log info;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    {site}
}}
"""
PLAIN_SITE = """include {home}/agentapp-upstream.conf;
    server {{
        listen 127.0.0.1:{port};
        include {home}/agentapp-locations.conf;
    }}"""


@dataclass
class Nginx:
    """Runs in the foreground. ``hosts`` are their addresses, in the order of those in the shipped file."""

    home: Path
    port: int
    hosts: Sequence[str]
    tls_port: int | None = None  # then it is the shipped site with TLS, and ``port`` leads to it
    changes: Mapping[str, str] = field(default_factory=dict)  # in the shipped files, such as shorter times
    down: set[str] = field(default_factory=set)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def configuration(self) -> Path:
        return self.home / "nginx.conf"

    def errors(self) -> str:
        return (self.home / "error.log").read_text(errors="replace")

    def write(self) -> None:
        self.home.mkdir(exist_ok=True)
        for name in NAMES:
            (self.home / name).write_text(self._placed((SHIPPED / name).read_text()))
        site = PLAIN_SITE.format(home=self.home, port=self.port)
        if self.tls_port is not None:
            site = f"include {self.home}/agentapp.conf;"
        user = "user root;" if os.geteuid() == 0 else ""
        self.configuration.write_text(AROUND.format(user=user, home=self.home, site=site))

    def check(self) -> str:
        """What `nginx -t` says against the configuration: nothing."""
        self.write()
        return self.said_of_what_is_written()

    def said_of_what_is_written(self) -> str:
        done = subprocess.run(self._command("-t", "-q"), capture_output=True, text=True, check=False)
        return done.stderr if done.returncode or "[warn]" in done.stderr else ""

    def start(self) -> None:
        self.write()
        with open(self.home / "output.txt", "ab") as output:
            self.process = subprocess.Popen(
                self._command("-g", "daemon off;"), stderr=output, stdout=output, start_new_session=True
            )
        end = time.monotonic() + TIMEOUT_SECONDS
        while not self._answers():
            assert self.process.poll() is None, (self.home / "output.txt").read_text()
            assert time.monotonic() < end, "nginx does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def take_out(self, host: str) -> None:
        """As the documentation says: mark it down and reload."""
        self.down.add(host)
        self.reload()

    def put_in(self, host: str) -> None:
        self.down.discard(host)
        self.reload()

    def reload(self) -> None:
        """Until all of its processes work by the new configuration, or only end what they have."""
        assert self.process is not None
        before = self._processes()
        self.write()
        subprocess.run(self._command("-s", "reload"), check=True, capture_output=True)
        end = time.monotonic() + TIMEOUT_SECONDS
        while len(self._processes() - before) < 2:
            assert time.monotonic() < end, "nginx did not reload"
            time.sleep(0.02)

    def _processes(self) -> set[int]:
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {int(child) for child in children}

    def _command(self, *options: str) -> list[str]:
        assert NGINX is not None
        return [
            NGINX,
            "-p",
            str(self.home),
            "-e",
            str(self.home / "error.log"),
            "-c",
            str(self.configuration),
            *options,
        ]

    def _answers(self) -> bool:
        """Anything, though it be that there is no host."""
        if self.tls_port is not None:
            return (self.home / "nginx.pid").exists() and bool(self._processes())
        try:
            with urlopen(f"{self.url}/metrics", timeout=5):
                return True
        except URLError as error:
            return hasattr(error, "code")
        except OSError:
            return False

    def _placed(self, text: str) -> str:
        for there, here in zip(HOSTS_THERE, self.hosts, strict=False):
            text = text.replace(f"server {there}", f"server {here}")
        for there in HOSTS_THERE[len(self.hosts) :]:
            text = re.sub(rf"\n *server {there}.*;", "", text)
        for host in self.down:
            text = re.sub(rf"(server {host}[^;]*);", r"\1 down;", text)
        text = text.replace("/etc/nginx/agentapp", str(self.home))
        text = text.replace("/etc/ssl/agentapp/fullchain.pem", str(CERTIFICATE))
        text = text.replace("/etc/ssl/agentapp/privkey.pem", str(CERTIFICATE))
        text = re.sub(r"\n *listen \[::\].*;", "", text)
        text = text.replace("listen 443 ", f"listen 127.0.0.1:{self.tls_port} ")
        text = text.replace("listen 80;", f"listen 127.0.0.1:{self.port};")
        for old, new in self.changes.items():
            text = text.replace(old, new)
        return text


@contextmanager
def nginx(directory: Path, port: int, hosts: Sequence[str], **more: object) -> Iterator[Nginx]:
    """Answers already; gone at the end, whatever happens."""
    running = Nginx(directory / "nginx", port, hosts, **more)  # type: ignore[arg-type]
    try:
        running.start()
        yield running
    finally:
        running.stop()
