"""The systemd unit: systemd itself finds no fault with it, and the server says when it is ready."""

from __future__ import annotations

import configparser
import shutil
import socket
import subprocess
from math import ceil
from pathlib import Path

import pytest

from agentapp.config import Settings
from agentapp.parsing import settings_of
from agentapp.server import options
from agentapp.server.options import ServerOptions
from tests.support.documentation import ROOT
from tests.support.server import server

UNIT = ROOT / "deploy/systemd/agentapp.service"
PROGRAM = "/opt/agentapp/bin/agentapp"

systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine (Debian: systemd)"
)


def service() -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read(UNIT)
    return dict(parser["Service"])


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """With a program that there is on this machine."""
    made = tmp_path / UNIT.name
    made.write_text(UNIT.read_text().replace(PROGRAM, shutil.which("true") or "/bin/true"))
    return made


@systemd
def test_systemd_finds_no_fault_with_it(here: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", here],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@systemd
def test_systemd_sees_a_mistake(here: Path) -> None:
    here.write_text(here.read_text().replace("ProtectSystem=strict", "ProtectSistem=strict"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", here],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "ProtectSistem" in done.stderr


@systemd
def test_it_may_do_little(here: Path) -> None:
    """By systemd's own measure, where 10 is a service that may do everything."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", here]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_it_waits_for_turns_and_tells_only_the_first_process_to_end() -> None:
    found = service()
    turn = settings_of(Settings)["turn_deadline"].read({})
    assert int(found["TimeoutStopSec"]) > ceil(turn) + options.GRACE_SECONDS_BEYOND_A_TURN
    assert (found["KillMode"], found["KillSignal"]) == ("mixed", "SIGTERM")
    assert int(found["LimitNOFILE"]) >= options.open_files_of(
        int(settings_of(ServerOptions)["threads"].default)
    )
    assert found["ExecStart"] == f"{PROGRAM} serve"
    assert "ProcSubset" not in found, "workers could not tell which of the others are on their machine"


def test_the_server_says_when_it_is_ready(tmp_path: Path) -> None:
    """As `Type=notify` wants to be told. The socket is where systemd has it, in the environment."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(30)
        with server(tmp_path, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}):
            said = [told.recv(4096).decode()]
    assert service()["Type"] == "notify"
    assert said[0].splitlines()[0] == "READY=1"
