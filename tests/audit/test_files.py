"""Which files the auditor reads, and what the module in each of them is called."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from agentapp.audit.files import find
from agentapp.audit.reading import Place, Unreadable, open_file
from tests.audit.support.command import (
    CLEAN,
    SHARED,
    STATE,
    audit,
    changing_module,
    findings,
    reported,
    summary,
    write,
)
from tests.support.server import SCRIPTS, run

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    "skipped",
    [
        ".hidden/a.py",
        "__pycache__/a.py",
        "node_modules/a.py",
        "lib/site-packages/a.py",
        "agent.egg-info/a.py",
        "sub/.tox/x/a.py",
        "a.txt",
        "a.pyi",
        "a.pyc",
        "a",
    ],
)
def test_files_that_are_skipped(here: Path, skipped: str) -> None:
    write(here, {"app.py": SHARED, skipped: SHARED})
    assert reported(".") == ["app.py:5 ISO001"]


def test_virtual_environments_are_skipped(here: Path) -> None:
    write(here, {"app.py": SHARED, "env/pyvenv.cfg": "", "env/lib/a.py": SHARED, "env2/lib/a.py": SHARED})
    assert reported(".") == ["app.py:5 ISO001", "env2/lib/a.py:5 ISO001"]


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("env/lib/site-packages/pkg/a.py", "env/lib/site-packages"),
        ("env/lib/site-packages/pkg/a.py", "env/lib/site-packages/pkg"),
        (".hidden/sub/a.py", ".hidden"),
        ("env/pkg/a.py", "env"),
        ("node_modules/a.py", "node_modules/a.py"),
        ("server", "server"),
        ("notes.txt", "notes.txt"),
        ("a.pyw", "."),
    ],
)
def test_an_explicitly_named_path_is_always_read(here: Path, file: str, named: str) -> None:
    write(here, {"env/pyvenv.cfg": "", file: SHARED})
    assert reported(named) == [f"{file}:5 ISO001"]


def test_site_packages_below_a_named_path_are_skipped(here: Path) -> None:
    write(here, {"lib/a.py": SHARED, "lib/site-packages/b.py": SHARED})
    assert reported("lib") == ["lib/a.py:5 ISO001"]


def test_a_file_that_is_named_twice_is_read_once(here: Path) -> None:
    write(here, {"pkg/app.py": SHARED})
    result = audit("pkg/app.py", "pkg", ".", "./pkg/../pkg/app.py", exit_code=1)
    assert summary(result.stdout) == (1, 1, 0)


def test_cycles_of_links_end(here: Path) -> None:
    write(here, {"pkg/app.py": SHARED, "other/b.py": CLEAN})
    os.symlink("..", here / "pkg" / "up")
    os.symlink(".", here / "pkg" / "again")
    os.symlink("../other", here / "pkg" / "other")
    assert reported(".") == ["pkg/app.py:5 ISO001"]
    assert summary(audit(".").stdout)[0] == 2


def test_a_named_link_to_a_directory_is_followed(here: Path) -> None:
    write(here, {"real/app.py": SHARED})
    os.symlink("real", here / "link")
    assert reported("link") == ["link/app.py:5 ISO001"]


@pytest.mark.parametrize("target", ["nowhere.py", "broken.py"], ids=["to nothing", "to itself"])
def test_a_broken_link_is_reported(here: Path, target: str) -> None:
    write(here, {"app.py": SHARED})
    os.symlink(target, here / "broken.py")
    os.symlink("ann@host.1234", here / ".#app.py")  # an editor's lock
    assert reported(".") == ["app.py:5 ISO001", "broken.py:1 ISO099"]
    assert reported("broken.py") == ["broken.py:1 ISO099"]


def test_pipes_and_devices_are_reported_and_not_opened(here: Path) -> None:
    write(here, {"app.py": SHARED})
    os.mkfifo(here / "pipe.py")
    assert reported(".") == ["app.py:5 ISO001", "pipe.py:1 ISO099"]
    assert reported("/dev/null") == ["/dev/null:1 ISO099"]


def test_a_directory_that_cannot_be_listed_is_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, {"app.py": SHARED, "secret/a.py": SHARED})
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr("agentapp.audit.files.os.scandir", scandir)
    assert reported(".") == ["app.py:5 ISO001", "secret:1 ISO099"]
    assert "cannot be read: Permission denied" in audit("secret", exit_code=2).stdout


def test_every_file_is_read_once(here: Path) -> None:
    """The content of a pipe can be read only once."""
    os.mkfifo(here / "pipe")
    source = SHARED.replace("(text)\n", "(text)  # agentapp: shared ok\n")
    writer = threading.Thread(target=(here / "pipe").write_text, args=(source,))
    writer.start()
    result = audit("pipe", exit_code=1)
    writer.join()
    assert "pipe:5: ISO001" in result.stdout
    assert "pipe:5: ISO090" in result.stdout
    assert "> 5 |     HISTORY.append(text)" in result.stdout


@pytest.mark.parametrize(
    "source",
    [
        "# coding: latin-1\nNAME = 'é'\n".encode("latin-1") + SHARED.encode(),
        b"\xef\xbb\xbf# first\nx = 1\n" + SHARED.encode(),
        b"#!/usr/bin/python\n# -*- coding: cp1251 -*-\n" + SHARED.encode() + "# Привет".encode("cp1251"),
        b"# one\r\n# two\r\n" + SHARED.replace("\n", "\r\n").encode(),
        b"# one\r# two\r" + SHARED.replace("\n", "\r").encode(),
    ],
    ids=["latin-1", "BOM", "cp1251", "CRLF", "CR"],
)
def test_encodings_and_line_ends(here: Path, source: bytes) -> None:
    write(here, {"app.py": source})
    assert reported(".") == ["app.py:7 ISO001"]
    assert "  > 7 |     HISTORY.append(text)\n" in audit(".").stdout


def test_nothing_that_is_read_is_imported_or_run(here: Path) -> None:
    write(
        here,
        {
            "app.py": "open('ran', 'w').close()\nraise SystemExit(77)\n" + SHARED,
            "conftest.py": "open('ran', 'w').close()\n",
            "sitecustomize.py": "open('ran', 'w').close()\n",
            "json.py": "open('ran', 'w').close()\n",
        },
    )
    done = run(SCRIPTS / "agentapp", "audit", ".", directory=here)
    assert "app.py:7: ISO001" in done.stdout
    assert sorted(path.name for path in here.iterdir()) == [
        "app.py",
        "conftest.py",
        "json.py",
        "sitecustomize.py",
    ]


def test_paths_are_relative_below_the_current_directory_and_absolute_elsewhere(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"work/sub/app.py": SHARED, "work2/app.py": SHARED})
    assert reported(str(here)) == ["sub/app.py:5 ISO001"]
    assert reported("../work2") == [f"{tmp_path}/work2/app.py:5 ISO001"]
    monkeypatch.chdir(here / "sub")
    assert reported(".") == ["app.py:5 ISO001"]


def test_a_file_name_that_is_not_utf_8_is_escaped(here: Path) -> None:
    (here / os.fsdecode(b"caf\xe9.py")).write_text(SHARED)
    for form in ("text", "json", "sarif", "github"):
        assert "xe9.py" in audit(".", "--format", form, exit_code=1).stdout
    (place,) = find(["."], lambda _: False).places
    assert place.module == "caf\\xe9"
    assert open_file(place).source == SHARED.encode()


# -- names of modules


@pytest.mark.parametrize("named", [".", "src", "src/pkg", "src/pkg/sub", "src/pkg/sub/c.py"])
def test_a_module_in_a_package_has_the_name_of_an_import(here: Path, named: str) -> None:
    write(here, {"src/pkg/__init__.py": "", "src/pkg/sub/__init__.py": "", "src/pkg/sub/c.py": CLEAN})
    modules = {place.path: place.module for place in find([named], lambda _: False).places}
    assert modules["src/pkg/sub/c.py"] == "pkg.sub.c"


def test_names_outside_packages_are_relative_to_the_named_directory(here: Path) -> None:
    write(here, {"src/a.py": "", "src/tools/b.py": "", "src/pkg/__init__.py": "", "src/v1.2/c.py": ""})
    names = {place.path: (place.module, place.is_package) for place in find(["src"], lambda _: False).places}
    assert names == {
        "src/a.py": ("a", False),
        "src/tools/b.py": ("tools.b", False),
        "src/pkg/__init__.py": ("pkg", True),
        "src/v1.2/c.py": ("v1_2.c", False),
    }
    (alone,) = find(["src/tools/b.py"], lambda _: False).places
    assert alone.module == "b"


@pytest.mark.parametrize("named", [".", "src", "src/pkg"])
def test_a_change_from_another_file_is_found(here: Path, named: str) -> None:
    write(
        here,
        {
            "src/pkg/__init__.py": "",
            "src/pkg/state.py": STATE,
            "src/pkg/views.py": changing_module("pkg.state"),
        },
    )
    (one,) = findings(named)
    assert (one["path"], one["line"]) == ("src/pkg/views.py", 5)
    assert ", from src/pkg/state.py:1," in one["message"]


@pytest.mark.parametrize("imported", ["app.state", ".state"])
def test_packages_of_the_same_name_are_kept_apart(here: Path, imported: str) -> None:
    """Each package changes its own object, also with absolute imports of `app`."""
    for service in ("one", "two", "three"):
        write(
            here,
            {
                f"{service}/app/__init__.py": "",
                f"{service}/app/state.py": STATE,
                f"{service}/app/views.py": changing_module(imported),
                f"{service}/main.py": "",
            },
        )
    homes = [re.search(r", from (\S+):1,", item["message"]) for item in findings(".")]
    assert [home and home[1] for home in homes] == [f"{s}/app/state.py" for s in ("one", "three", "two")]


def test_module_names_are_unique(here: Path) -> None:
    names = ["a/x.py", "b/x.py", "foo.py", "foo/__init__.py", "foo.pyw", "v.1/c.py", "v_1/c.py", "d/foo#2.py"]
    write(here, {f"{top}/{name}": SHARED for name in names for top in ("p", "q")})
    for paths in (["."], ["p", "q"], ["p/a", "p/b", "q/a/x.py", "q/b/x.py", "p/d", "p"]):
        places = find(paths, lambda _: False).places
        assert len({place.module for place in places}) == len(places)
    assert len(reported("p", "q")) == 2 * len(names)


@pytest.mark.parametrize(
    ("packages", "imported"),
    [
        (["src/app/__init__.py"], "app.sub.state"),  # a directory inside a package belongs to it
        ([], "app.sub.state"),
        ([], "sub.state"),  # the program is started in `app`
        (["src/app/sub/__init__.py"], "sub.state"),
    ],
)
def test_imports_are_followed_where_a_directory_has_no_init(
    here: Path, packages: list[str], imported: str
) -> None:
    write(here, dict.fromkeys(packages, ""))
    write(here, {"src/app/sub/state.py": STATE, "src/app/views.py": changing_module(imported)})
    (one,) = findings(".")
    assert (one["path"], one["line"]) == ("src/app/views.py", 5)
    assert ", from src/app/sub/state.py:1," in one["message"]


def test_an_absolute_import_does_not_start_inside_a_package(here: Path) -> None:
    """Imports start only in directories that are not packages."""
    write(here, {"app/__init__.py": "", "app/state.py": STATE, "app/views.py": changing_module("state")})
    assert all("app/state.py" not in item["message"] for item in findings("."))


def test_a_package_takes_precedence_over_a_file_of_the_same_name(here: Path) -> None:
    write(here, {"state.py": "", "state/__init__.py": STATE, "views.py": changing_module("state")})
    (one,) = findings(".")
    assert ", from state/__init__.py:1," in one["message"]


# -- reading


def test_a_deleted_file_is_unreadable(here: Path) -> None:
    with pytest.raises(Unreadable, match="does not exist"):
        open_file(Place(str(here / "gone.py"), "gone.py", "gone", False))
