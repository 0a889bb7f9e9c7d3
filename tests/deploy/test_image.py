"""The Dockerfile says what a container needs, and what can be tried of it without Docker holds."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from agentapp.config import PROVIDERS, Settings
from agentapp.parsing import settings_of
from agentapp.server.options import ServerOptions
from agentapp.telemetry.log_options import LogOptions
from tests.support.documentation import ROOT
from tests.support.hosts import hosts, needs_hosts
from tests.support.postgres import migrated_postgres_url
from tests.support.server import SCRIPTS, free_port, run, server
from tests.support.server_users import add_people, seats

DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
KNOWN = {
    *("FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE"),
    *("HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"),
}
SECRET = re.compile(r"\w*(KEY|SECRET|PASSWORD|TOKEN|DATABASE_URL)\w*\s*=")

Instruction = tuple[str, str]


def stages(text: str) -> list[list[Instruction]]:
    """The instructions of each stage, in order, without comments and with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        assert name in KNOWN, f"no instruction: {line}"
        if name == "FROM":
            found.append([])
        assert found, f"before the first FROM: {line}"
        found[-1].append((name, rest.strip()))
    return found


STAGES = stages(DOCKERFILE.read_text())
LAST = STAGES[-1]


def last(name: str) -> str:
    (found,) = [rest for of, rest in LAST if of == name]
    return found


def exec_form(text: str) -> list[str]:
    """A list, which is run without a shell: a shell would be the one that gets SIGTERM."""
    found = json.loads(text)
    assert isinstance(found, list)
    assert all(isinstance(part, str) for part in found)
    return found


def test_what_it_runs_gets_sigterm_and_is_not_root() -> None:
    assert [*exec_form(last("ENTRYPOINT")), *exec_form(last("CMD"))] == ["agentapp", "serve"]
    assert last("STOPSIGNAL") == "SIGTERM"
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last("USER")), (
        "by number: so a platform sees that it is not root"
    )
    order = [name for name, _ in LAST]
    assert order.index("USER") > max(n for n, name in enumerate(order) if name in ("RUN", "COPY"))


def test_it_starts_from_images_with_a_version_and_installs_the_versions_that_were_tested() -> None:
    images = [stage[0][1].split()[0] for stage in STAGES]
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+", image) for image in images), images
    (install,) = [rest for stage in STAGES for name, rest in stage if name == "RUN" and "pip install" in rest]
    assert "-c constraints.txt" in install
    extras = re.search(r"'\.\[(.+)\]'", install)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()


def test_what_it_copies_is_there_and_is_all_that_the_wheel_is_made_of() -> None:
    copied = [
        source
        for stage in STAGES
        for name, rest in stage
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    ignore = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().split()
    assert ignore[0] == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == set(copied)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = build["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], build["project"]["readme"]}
    assert needed <= set(copied)


def test_the_wheel_of_exactly_these_files_names_the_commit_that_is_told(tmp_path: Path) -> None:
    assert ("ARG", "AGENTAPP_BUILD_COMMIT=") in STAGES[0]
    files = tmp_path / "files"
    files.mkdir()
    for source in (source for name, rest in STAGES[0] if name == "COPY" for source in rest.split()[:-1]):
        subprocess.run(("cp", "-r", ROOT / source, files), check=True)
    make = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, files)
    done = run(*make, directory=tmp_path, env={"AGENTAPP_BUILD_COMMIT": "0123456789abcdef"})
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "wheel", "zip")
    assert (tmp_path / "wheel/agentapp/_shipped/build").read_text() == "0123456\n"


def test_nothing_secret_is_in_the_image() -> None:
    told = " ".join(rest for stage in STAGES for name, rest in stage if name in ("ENV", "RUN"))
    assert not SECRET.search(told)
    declared = {
        each.variable for of in (Settings, ServerOptions, LogOptions) for each in settings_of(of).values()
    }
    assert set(re.findall(r"AGENTAPP_\w+", told)) <= declared
    assert not any(provider.key_variable and provider.key_variable in told for provider in PROVIDERS)


def health_check(port: int) -> list[str]:
    command = exec_form(last("HEALTHCHECK").partition("CMD")[2])
    assert command[0] == "python"
    return [sys.executable, *(part.replace(":8000/", f":{port}/") for part in command[1:])]


def test_its_health_check_knows_a_server_that_is_alive(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        assert _code(health_check(int(running.url.rpartition(":")[2]))) == 0
    assert _code(health_check(free_port())) != 0


@needs_hosts
def test_all_but_the_shared_memory_may_be_read_only(tmp_path: Path) -> None:
    """As with `docker run --read-only`, where /dev/shm and a tmpfs at /tmp can be written."""
    read_only = ("sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh", "env", "TMPDIR=/dev/shm")
    command = (*read_only, SCRIPTS / "agentapp", "serve")
    with (
        migrated_postgres_url() as url,
        hosts(tmp_path, url, clocks=(0,), command=command, log_level="info") as running,
    ):
        mounts = Path(f"/proc/{running[0].pid}/mounts").read_text().splitlines()
        (root,) = [fields for fields in map(str.split, mounts) if fields[1] == "/"]
        assert root[3].split(",")[0] == "ro"
        add_people(url, ["ann"])
        (ann,) = seats(running.url, ["ann"])
        assert ann.send("hello").status == 200
        assert "Read-only file system" not in running.output()
        assert running[0].stop() == 0


def test_nothing_private_that_lies_in_a_checkout_is_sent_to_the_builder() -> None:
    ignore = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().split()
    kept = [line[1:] for line in ignore if line.startswith("!")]
    private = (
        "instance/secret",
        "agentapp.env",
        ".git/config",
        ".venv/bin/python",
        "tests/support/localhost.pem",
    )
    for path in private:
        assert not any(fnmatch.fnmatch(path, pattern) or path.startswith(f"{pattern}/") for pattern in kept)


def _code(command: Sequence[str]) -> int:
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
