"""`agentapp serve`: what stops it before it becomes gunicorn. Servers that start: server/test_start.py."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agentapp.errors import StartError
from agentapp.server import options
from tests.support.commands import BAD_SETTINGS, Agentapp
from tests.support.server import free_port


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these commands must end before it becomes another program."""

    def refuse(*args: object) -> None:
        raise AssertionError("it started")

    monkeypatch.setattr(os, "execve", refuse)


@pytest.mark.parametrize(
    ("env", "problem"),
    [each for each in BAD_SETTINGS if "AGENTAPP_DATABASE_URL" not in each[0]],  # gunicorn's master opens it
)
def test_bad_setting_is_one_line_and_nothing_starts(
    agentapp: Agentapp, environ: dict[str, str], env: dict[str, str], problem: str
) -> None:
    port = free_port()
    environ |= {"AGENTAPP_BIND": f"127.0.0.1:{port}"} | {k: v.format(port=port) for k, v in env.items()}
    done = agentapp("serve")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"agentapp: {problem}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("bind", "problem"),
    [
        ("nonsense", "--bind: must look like 127.0.0.1:8000"),
        ("127.0.0.1:0", "--bind: must end in a port from 1 to 65535"),
        ("192.0.2.1:8000", "cannot listen on 192.0.2.1:8000: "),
        ("no-such-host.invalid:8000", "cannot listen on no-such-host.invalid:8000: "),
        ("unix:/no/such/directory/socket", "cannot listen on /no/such/directory/socket: "),
    ],
)
def test_bad_address_is_one_line(
    agentapp: Agentapp, environ: dict[str, str], bind: str, problem: str
) -> None:
    environ |= {"AGENTAPP_SECRET_KEY": "s" * 32, "AGENTAPP_HOSTS": "chat.example.org"}
    done = agentapp("serve", "--bind", bind)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"agentapp: {problem}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("place", ["file", "/proc/agentapp", "/dev/null"])
def test_directory_that_cannot_be_is_one_line(
    agentapp: Agentapp, environ: dict[str, str], tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    environ["AGENTAPP_INSTANCE"] = place
    done = agentapp("serve")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"agentapp: cannot make the directory {tmp_path / place}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write to any directory")
def test_directory_without_permission_is_one_line(agentapp: Agentapp, tmp_path: Path) -> None:
    (tmp_path / "instance").mkdir(mode=0o500)
    done = agentapp("serve")
    assert done.exit_code == 2
    assert done.stderr.startswith("agentapp: cannot ")
    assert done.stderr.count("\n") == 1


def test_port_that_only_root_may_have_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by a stand-in: whoever runs the tests may be root."""

    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(StartError, match=r"^cannot listen on 127.0.0.1:80: Permission denied$"):
        options.check_free("127.0.0.1:80")


def test_socket_somebody_listens_on_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(StartError, match="another server does"):
            options.check_free(f"unix:{path}")
    options.check_free(f"unix:{path}")  # left behind by a server that is gone
    path.unlink()
    path.write_text("")
    with pytest.raises(StartError, match="is not a socket"):
        options.check_free(f"unix:{path}")
