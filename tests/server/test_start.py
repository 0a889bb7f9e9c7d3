"""Starting and stopping for real: `agentapp serve`, plain gunicorn, and the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from agentapp import __version__, build
from agentapp.storage import migrate, schema
from tests.server.test_load import add_users
from tests.support.commands import BAD_SETTINGS, set_revision
from tests.support.postgres import postgres_url
from tests.support.server import SCRIPTS, TIMEOUT_SECONDS, Server, free_port, run, server, started

ROOT = Path(__file__).parents[2]
SERVE = (SCRIPTS / "agentapp", "serve")
GUNICORN = (SCRIPTS / "gunicorn", "wsgi:app")

# A wsgi.py that also shows what the application sees of a request, and streams until a file is there.
SHOWING = """
import gc, json, os, sys, time
from agentapp.app import create_app

app = create_app()
inside = app.wsgi_app

def showing(environ, start):
    if environ["PATH_INFO"] == "/seen":
        start("200 OK", [("Content-Type", "application/json")])
        names = ("wsgi.url_scheme", "SCRIPT_NAME", "REMOTE_ADDR")
        seen = {name: environ.get(name) for name in names}
        seen["interval"], seen["collects"] = sys.getswitchinterval(), gc.isenabled()
        seen["not compiled"] = len(app.jinja_env.list_templates()) - len(app.jinja_env.cache)
        # Only gunicorn.conf.py imports it, in the master.
        return [json.dumps({**seen, "inherited": "agentapp.server.options" in sys.modules}).encode()]
    if environ["PATH_INFO"] == "/slow":
        start("200 OK", [("Content-Type", "text/plain")])
        return slowly()
    return inside(environ, start)

def slowly():
    yield b"."
    while not os.path.exists("go-on"):
        time.sleep(0.01)
    for _ in range(10):
        yield b"."
        time.sleep(0.05)
    yield b"end"

app.wsgi_app = showing
"""


def get(url: str, **headers: str) -> str:
    with urlopen(Request(url, headers=headers), timeout=30) as answer:
        body: bytes = answer.read()
        return body.decode()


def upgrade(directory: Path) -> str:
    """Migrate the database that a server working in this directory will use."""
    (directory / "instance").mkdir()
    url = f"sqlite:///{directory}/instance/agentapp.sqlite3"
    migrate.upgrade(url)
    return url


def wait_for(claim: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not claim():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def is_ready(running: Server) -> bool:
    try:
        return get(f"{running.url}/readyz") == "ready\n"
    except HTTPError as refused:
        refused.close()
        return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory with the two files that plain gunicorn takes from a clone."""
    for name in ("wsgi.py", "gunicorn.conf.py"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One `agentapp serve` for the claims that change nothing. Its directory began with an empty home."""
    directory = tmp_path_factory.mktemp("served")
    home = directory / "home"
    home.mkdir()
    env = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    with server(directory, command=SERVE, workers=2, env=env) as running:
        yield running


def test_serve_comes_up_with_a_link_and_writes_nothing_outside_the_instance(served: Server) -> None:
    link, directory = served.setup_link, served.log.parent
    assert link is not None
    assert served.output() == (
        f"agentapp {build.NAME} on {served.url} (demo model)\nMake the first account: {link}\n"
    )
    assert link.startswith(f"{served.url}/setup?token=")
    assert "<form" in get(link)
    assert "<form" in get(f"{served.url}/login")
    assert get(f"{served.url}/readyz")
    assert sorted(path.name for path in directory.iterdir()) == ["home", "instance", served.log.name]
    assert list((directory / "home").iterdir()) == []


def test_master_opens_no_database_before_or_after_the_fork(served: Server) -> None:
    get(f"{served.url}/login")
    get(f"{served.url}/readyz")
    assert [file for file in opened(served.pid) if "sqlite" in file] == []
    assert len(sockets_of(served.pid)) == 1, "the listening one"


def test_serve_prints_no_link_once_there_is_an_account(tmp_path: Path) -> None:
    add_users(upgrade(tmp_path), ["ann"])
    with server(tmp_path) as s:
        assert s.output() == f"agentapp {build.NAME} on {s.url} (demo model)\n"


def test_sigterm_stops_the_server_and_every_worker(tmp_path: Path) -> None:
    with server(tmp_path, command=SERVE, workers=2) as s:
        wait_for(lambda: len(s.children()) == 2)
        family, printed = [s.pid, *s.children()], s.output()
        assert s.stop() == 0
        assert [pid for pid in family if is_alive(pid)] == []
        assert s.output() == printed


def test_stopping_server_finishes_the_answer_it_is_streaming(clone: Path) -> None:
    upgrade(clone)
    (clone / "wsgi.py").write_text(SHOWING)
    with server(clone, command=GUNICORN) as s, urlopen(f"{s.url}/slow", timeout=30) as answer:
        assert answer.read(1) == b"."
        s.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not sockets_of(s.pid))  # the master listens no more: it is stopping its workers
        (clone / "go-on").touch()
        assert answer.read() == b"." * 10 + b"end"
        assert s.process.wait(TIMEOUT_SECONDS) == 0


def test_master_is_not_connected_to_postgresql(tmp_path: Path) -> None:
    with (
        postgres_url() as url,
        server(tmp_path, command=SERVE, env={"AGENTAPP_DATABASE_URL": url}) as s,
    ):
        get(f"{s.url}/readyz")
        assert s.setup_link
        assert len(sockets_of(s.pid)) == 1, "the listening one"
        assert not (tmp_path / "instance" / "agentapp.sqlite3").exists()


def opened(pid: int) -> list[str]:
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            found.append(os.readlink(fd))
    return found


def sockets_of(pid: int) -> list[str]:
    return [file for file in opened(pid) if file.startswith("socket:")]


def test_serve_listens_on_ipv6(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as exc:
        pytest.skip(f"this machine has no IPv6: {exc}")
    with server(tmp_path, host="[::1]") as s:
        assert s.output().startswith(f"agentapp {build.NAME} on http://[::1]:")


def test_killed_worker_is_replaced(tmp_path: Path) -> None:
    with server(tmp_path) as s:
        (worker,) = s.children()
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: s.children() not in ([], [worker]))
        assert get(f"{s.url}/livez")


def test_taken_port_is_one_line_and_touches_no_database(tmp_path: Path, taken_port: int) -> None:
    bind = f"127.0.0.1:{taken_port}"
    done = run(*SERVE, "--bind", bind, directory=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"agentapp: cannot listen on {bind}: Address already in use\n"
    assert not (tmp_path / "instance" / "agentapp.sqlite3").exists()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql+psycopg://h:port/d", "AGENTAPP_DATABASE_URL: is not a database URL"),
        ("sqlite:///instance/agentapp.sqlite3", "the database is at revision 0099, made by a newer agentapp"),
    ],
    ids=["unreadable", "newer"],
)
def test_database_that_serve_cannot_use_is_one_line(tmp_path: Path, url: str, problem: str) -> None:
    set_revision(upgrade(tmp_path), "0099")
    bind = f"127.0.0.1:{free_port()}"
    done = run(*SERVE, "--bind", bind, directory=tmp_path, env={"AGENTAPP_DATABASE_URL": url})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"agentapp: {problem}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("env", "problem"), BAD_SETTINGS)
def test_bad_setting_is_one_line_and_plain_gunicorn_does_not_start(
    clone: Path, env: dict[str, str], problem: str
) -> None:
    port = free_port()
    env = {"AGENTAPP_BIND": f"127.0.0.1:{port}"} | {k: v.format(port=port) for k, v in env.items()}
    done = run(*GUNICORN, directory=clone, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"agentapp: {problem}")
    assert done.stderr.count("\n") == 1


def test_gunicorns_own_bind_option_is_held_to_the_same_rule(clone: Path) -> None:
    upgrade(clone)
    done = run(*GUNICORN, "--bind", f"0.0.0.0:{free_port()}", directory=clone)
    assert done.returncode == 2
    assert done.stderr.startswith("agentapp: AGENTAPP_SECRET_KEY: required when serving on 0.0.0.0:")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [SERVE, GUNICORN], ids=["serve", "gunicorn"])
def test_team_that_cannot_be_loaded_is_one_line(clone: Path, command: tuple[str | Path, ...]) -> None:
    upgrade(clone)
    env = {"AGENTAPP_BIND": f"127.0.0.1:{free_port()}", "AGENTAPP_TEAM": "no_such_module:team"}
    done = run(*command, directory=clone, env=env)
    assert done.returncode in (2, 4)
    assert done.stderr.startswith("agentapp: AGENTAPP_TEAM: ")
    assert done.stderr.count("\n") == 1


def test_wsgi_module_alone_stops_other_servers_in_one_line(clone: Path) -> None:
    done = run(sys.executable, "-c", "import wsgi", directory=clone, env={"AGENTAPP_HTTPS": "perhaps"})
    assert done.returncode == 4
    assert done.stderr == "agentapp: AGENTAPP_HTTPS: must be 0 or 1; not 'perhaps'\n"


@pytest.mark.parametrize(
    ("revision", "problem"),
    [
        (None, "the database has no tables yet: run `agentapp db upgrade`"),
        ("0000", "the database is at revision 0000 and this agentapp needs "),
        ("0099", "the database is at revision 0099, made by a newer agentapp than this one"),
    ],
)
def test_plain_gunicorn_says_in_one_line_that_the_schema_is_not_its_own(
    clone: Path, revision: str | None, problem: str
) -> None:
    if revision:
        set_revision(upgrade(clone), revision)
    env = {"AGENTAPP_BIND": f"127.0.0.1:{free_port()}"}
    done = run(*GUNICORN, directory=clone, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"agentapp: {problem}")
    assert done.stderr.count("\n") == 1


def test_schema_changed_under_a_running_server_stops_its_workers_from_serving_and_not_the_server(
    clone: Path,
) -> None:
    url = upgrade(clone)
    with server(clone, command=GUNICORN) as s:
        (worker,) = s.children()
        set_revision(url, "0000")
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: s.children() not in ([], [worker]))
        with pytest.raises(HTTPError, match="503") as refused:
            get(f"{s.url}/readyz")
        assert "the database is at revision 0000" in refused.value.read().decode()
        refused.value.close()
        set_revision(url, schema.HEAD)  # as if it had been restored
        wait_for(lambda: is_ready(s))
        assert s.process.poll() is None
        assert "Traceback" not in s.output()


def test_plain_gunicorn_starts_while_the_database_is_away(clone: Path) -> None:
    env = {"AGENTAPP_DATABASE_URL": "postgresql+psycopg://nobody@127.0.0.1:1/none"}
    with server(clone, command=GUNICORN, env=env, workers=2) as s:
        first, *more = s.output().splitlines()
        assert first.startswith("agentapp: starting anyway: cannot use the database: ")
        # Every worker may say once more that it cannot look for turns left by others.
        assert len(more) <= 2
        assert all('"event": "heartbeat: ' in line for line in more), more
        with pytest.raises(HTTPError) as caught:
            get(f"{s.url}/readyz")
        with caught.value:
            assert caught.value.code == 503


FORWARDED = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "9.9.9.9", "SCRIPT_NAME": "/elsewhere"}


@pytest.fixture(scope="module")
def served_by_gunicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One plain gunicorn for the claims that change nothing. It is told to believe every proxy."""
    directory = tmp_path_factory.mktemp("gunicorn")
    shutil.copy(ROOT / "gunicorn.conf.py", directory)
    (directory / "wsgi.py").write_text(SHOWING)
    upgrade(directory)
    with server(directory, command=GUNICORN, workers=2, env={"FORWARDED_ALLOW_IPS": "*"}) as running:
        yield running


def test_a_worker_is_warm_before_its_first_request_and_its_threads_are_left_to_python(
    served_by_gunicorn: Server,
) -> None:
    seen = json.loads(get(f"{served_by_gunicorn.url}/seen"))
    assert (seen["not compiled"], seen["interval"], seen["collects"]) == (0, 0.005, True)


def test_plain_gunicorn_serves_with_several_workers(served_by_gunicorn: Server) -> None:
    wait_for(lambda: len(served_by_gunicorn.children()) == 2)
    assert "<form" in get(f"{served_by_gunicorn.url}/login")
    assert served_by_gunicorn.output() == ""
    for pid in (served_by_gunicorn.pid, *served_by_gunicorn.children()):
        assert "Umask:\t0077" in Path(f"/proc/{pid}/status").read_text(), "others could read what it makes"


def test_gunicorn_believes_no_forwarded_header(served_by_gunicorn: Server) -> None:
    seen = json.loads(get(f"{served_by_gunicorn.url}/seen", **FORWARDED))
    assert (seen["wsgi.url_scheme"], seen["SCRIPT_NAME"]) == ("http", "")
    assert seen["REMOTE_ADDR"] == "127.0.0.1"


def test_gunicorn_believes_no_forwarded_header_on_a_unix_socket(clone: Path) -> None:
    """Where its own list of trusted addresses is not asked."""
    upgrade(clone)
    (clone / "wsgi.py").write_text(SHOWING)
    with TemporaryDirectory() as short:  # a socket's path has at most 107 bytes
        path = Path(short, "socket")
        with started(GUNICORN, clone, clone / "output", {"AGENTAPP_BIND": f"unix:{path}"}) as process:
            wait_for(lambda: path.exists() or process.poll() is not None)
            assert path.exists(), (clone / "output").read_text()
            with OverUnix(path).get("/seen", FORWARDED) as answer:
                seen = json.loads(answer.read())
    assert (seen["wsgi.url_scheme"], seen["SCRIPT_NAME"]) == ("http", "")


class OverUnix(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))

    def get(self, path: str, headers: dict[str, str]) -> HTTPResponse:
        self.request("GET", path, headers={**headers, "Connection": "close"})
        return self.getresponse()


def test_sighup_brings_up_new_workers_with_no_module_of_the_old_master(clone: Path) -> None:
    upgrade(clone)
    (clone / "wsgi.py").write_text(SHOWING)
    with server(clone, command=GUNICORN) as s:
        before = s.children()
        s.process.send_signal(signal.SIGHUP)
        wait_for(lambda: bool(s.children()) and not set(before) & set(s.children()))
        assert json.loads(get(f"{s.url}/seen"))["inherited"] is False
        assert s.output() == ""


def test_a_worker_imports_no_library_that_the_master_could_have_imported_for_it() -> None:
    """Of which there are two seconds' worth, and sixty megabytes."""
    code = f"""
import runpy, sys
settings = runpy.run_path({str(ROOT / "gunicorn.conf.py")!r})
for name in settings["_libraries"]():
    __import__(name)
before = {{name.partition(".")[0] for name in sys.modules}} | {{"agentapp"}}
import agentapp.app, agentapp.agents.providers.anthropic, psycopg
new = {{name.partition(".")[0] for name in sys.modules}} - before - sys.stdlib_module_names
print(sorted(name for name in new if not name.startswith("_")))
"""
    env = {"ANTHROPIC_API_KEY": "k", "AGENTAPP_DATABASE_URL": "postgresql+psycopg://nowhere/none"}
    done = run(sys.executable, "-c", code, directory=ROOT, env=env)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_reloading_with_other_libraries_installed_says_that_it_is_not_enough(clone: Path) -> None:
    upgrade(clone)
    with server(clone, command=GUNICORN, env={"PYTHONPATH": str(clone)}) as s:
        info = clone / "some_library-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-library\nVersion: 2.0\n")
        s.process.send_signal(signal.SIGHUP)
        wait_for(lambda: bool(s.output()))
        told = "agentapp: other versions are installed now of some-library: restart to use them\n"
        assert s.output() == told
        assert get(f"{s.url}/livez")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    done = run(*build, directory=out)
    assert done.returncode == 0, done.stderr
    (made,) = out.glob("*.whl")
    return made


def test_wheel_alone_serves_from_an_empty_directory(wheel: Path, tmp_path: Path) -> None:
    python = _venv_with(wheel, tmp_path / "venv")
    empty = tmp_path / "empty"
    empty.mkdir()
    with server(empty, command=(python.with_name("agentapp"), "serve")) as s:
        assert s.setup_link
        assert "<form" in get(f"{s.url}/login")
        assert get(f"{s.url}/readyz")
        assert s.output().startswith(f"agentapp {__version__} (build ")
        conf = Path(f"/proc/{s.pid}/cmdline").read_text().split("\0")[4]
        assert Path(conf).is_relative_to(tmp_path / "venv"), "the clone's files were used"


def test_wheel_holds_no_leftovers(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path, "zip")
    names = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")]
    assert [name for name in names if "__pycache__" in name or name.startswith(("tests", "instance"))] == []
    assert "agentapp/_shipped/migrations/versions/0001_first_tables.py" in names


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="these files are no git checkout")
def test_a_wheel_and_an_sdist_and_its_wheel_name_the_commit_and_its_day(wheel: Path, tmp_path: Path) -> None:
    commit = build.checked_out(ROOT)
    assert commit is not None
    told = shipped_in(wheel, tmp_path / "wheel")
    assert re.fullmatch(rf"{commit[:7]}(-dirty)?, \d{{4}}-\d\d-\d\d\n", told), told
    make = (sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "both", ROOT)
    done = run(*make, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    ((of_sdist,), (sdist,)) = ((tmp_path / "both").glob(f"*.{ending}") for ending in ("whl", "tar.gz"))
    assert shipped_in(of_sdist, tmp_path / "of-sdist") == told
    shutil.unpack_archive(sdist, tmp_path / "sdist", filter="data")
    (root,) = (tmp_path / "sdist").iterdir()
    assert build.described(root / "agentapp") == f"build {told.strip()}"


def shipped_in(wheel: Path, directory: Path) -> str:
    shutil.unpack_archive(wheel, directory, "zip")
    return (directory / "agentapp" / build.SHIPPED).read_text()


def _venv_with(wheel: Path, venv: Path) -> Path:
    """The wheel in an environment of its own, with what it depends on lent from this one."""
    assert run(sys.executable, "-m", "venv", "--without-pip", venv, directory=wheel.parent).returncode == 0
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"])
    python = venv / "bin" / "python"
    install = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    done = run(sys.executable, *install, directory=wheel.parent)
    assert done.returncode == 0, done.stderr
    return python
