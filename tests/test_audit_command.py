"""`agentapp audit`: which files it reads, what it tells and in which form, what silences it, how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agentapp import __version__
from agentapp.audit import baseline, suppressions
from agentapp.audit.files import find
from agentapp.audit.findings import Finding
from agentapp.audit.formats import as_github, as_text
from agentapp.audit.judge import Hazard
from agentapp.audit.reading import Place, Unreadable, opened
from agentapp.audit.report import Report
from agentapp.audit.rules import RULES
from agentapp.audit.sarif import as_sarif
from tests.auditing import CLEAN, SHARED, audit, found, on_terminal, told, write
from tests.support.serving import SCRIPTS, run

ROOT = Path(__file__).parent.parent
SCHEMA = json.loads((Path(__file__).parent / "sarif-schema-2.1.0.json").read_text())
STATE = "HISTORY = []\n"
SUMMARY = re.compile(r"(\d+) files?, (\d+) findings?, (\d+) suppressed")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that everything happens in."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return directory


def changes(module: str) -> str:
    return f"from {module} import HISTORY\n\n\ndef view(text):\n    HISTORY.append(text)\n"


def summary(text: str) -> tuple[int, ...]:
    matched = SUMMARY.match(text.splitlines()[-1])
    assert matched, text
    return tuple(map(int, matched.groups()))


def configure(here: Path, table: str) -> None:
    (here / "pyproject.toml").write_text(f"[tool.agentapp.audit]\n{table}\n")


# -- how it ends


def test_clean_code_is_exit_code_0(here: Path) -> None:
    write(here, {"app.py": CLEAN})
    result = audit(".", exit_code=0)
    assert (result.stdout, result.stderr) == ("1 file, 0 findings, 0 suppressed\n", "")


def test_findings_are_exit_code_1_and_go_to_stdout(here: Path) -> None:
    write(here, {"app.py": SHARED})
    result = audit(".", exit_code=1)
    assert "app.py:5: ISO001" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_a_path_that_does_not_exist_is_exit_code_2_and_the_others_are_still_read(
    here: Path, form: str
) -> None:
    write(here, {"app.py": SHARED})
    result = audit("nowhere/x.py", "app.py", "--format", form, exit_code=2)
    for what in ("nowhere/x.py", "ISO099", "does not exist", "ISO001"):
        assert what in result.stdout
    assert result.stderr == "agentapp: 1 path could not be read\n"


def test_a_file_that_is_no_python_is_told_with_its_line_and_exit_code_2(here: Path) -> None:
    write(here, {"app.py": SHARED, "broken.py": "x = 1\n\ndef broken(:\n    pass\n"})
    assert told(".") == ["app.py:5 ISO001", "broken.py:3 ISO099"]
    result = audit(".", exit_code=2)
    assert "is not Python: invalid syntax" in result.stdout
    assert "  > 3 | def broken(:" in result.stdout


@pytest.mark.parametrize(
    "source",
    [
        b"x = '\xe9'\n",
        b"\x00",
        b"# coding: nonsense\n",
        b"# coding: hex\n",
        b"\xef\xbb\xbf# coding: latin-1\n",
        b"x = " + b"-" * 200_000 + b"1\n",
        b"(" * 5_000 + b")" * 5_000,
        b"x" + b".y" * 20_000,
        b"x = " + b"9" * 5_000,
        b"if x:\nprint()\n",
        b"def f():\n\treturn 1\n        return 2\n",
    ],
    ids=lambda source: repr(source[:24]),
)
def test_whatever_cannot_be_parsed_is_told_and_nothing_is_a_traceback(here: Path, source: bytes) -> None:
    write(here, {"bad.py": source, "good.py": SHARED})
    (bad, good) = found(".")
    assert (bad["path"], bad["rule"], good["rule"]) == ("bad.py", "ISO099", "ISO001")
    assert bad["line"] >= 1
    assert audit(".").exit_code == 2


def test_a_program_that_cannot_be_followed_is_exit_code_2(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hazards(modules: Any) -> list[Hazard]:
        return hazards(modules)

    write(here, {"app.py": SHARED})
    monkeypatch.setattr("agentapp.audit.report.hazards_in", hazards)
    result = audit(".", exit_code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("agentapp: the names of this program lead too far")


def test_files_with_strange_escape_sequences_are_read_without_a_warning(here: Path) -> None:
    write(here, {"app.py": SHARED + 'PATTERN = "\\d"\n'})
    assert told(".") == ["app.py:5 ISO001"]


def test_the_real_command_in_a_process_of_its_own(here: Path) -> None:
    write(here, {"app.py": SHARED})
    done = run(SCRIPTS / "agentapp", "audit", "app.py", directory=here)
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.startswith("app.py:5: ISO001 error: a module-level object is changed\n")
    assert summary(done.stdout) == (1, 1, 0)


def test_no_cache_finds_the_same(here: Path) -> None:
    write(here, {"app.py": SHARED})
    assert audit(".", "--no-cache", exit_code=1).stdout == audit(".", exit_code=1).stdout


def test_bad_format_is_refused(here: Path) -> None:
    told = audit(".", "--format", "xml", exit_code=2).stderr
    assert [word for word in ("xml", "text", "json", "sarif", "github") if f"'{word}'" not in told] == []


def test_without_any_path_it_says_what_to_do(here: Path) -> None:
    result = audit(exit_code=2)
    assert result.stderr == "agentapp: name a PATH, or paths in [tool.agentapp.audit] of pyproject.toml\n"


def test_a_directory_without_python_is_not_passed_over_in_silence(here: Path) -> None:
    write(here, {"docs/a.txt": "x"})
    result = audit("docs", exit_code=0)
    assert (summary(result.stdout), result.stderr) == ((0, 0, 0), "agentapp: there is no Python in docs\n")


# -- files


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
def test_what_is_skipped(here: Path, skipped: str) -> None:
    write(here, {"app.py": SHARED, skipped: SHARED})
    assert told(".") == ["app.py:5 ISO001"]


def test_virtual_environments_are_skipped(here: Path) -> None:
    write(here, {"app.py": SHARED, "env/pyvenv.cfg": "", "env/lib/a.py": SHARED, "env2/lib/a.py": SHARED})
    assert told(".") == ["app.py:5 ISO001", "env2/lib/a.py:5 ISO001"]


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
def test_what_is_named_explicitly_is_read_whatever_it_is_called(here: Path, file: str, named: str) -> None:
    write(here, {"env/pyvenv.cfg": "", file: SHARED})
    assert told(named) == [f"{file}:5 ISO001"]


def test_site_packages_below_a_named_path_are_skipped(here: Path) -> None:
    write(here, {"lib/a.py": SHARED, "lib/site-packages/b.py": SHARED})
    assert told("lib") == ["lib/a.py:5 ISO001"]


def test_a_file_that_is_named_twice_is_read_once(here: Path) -> None:
    write(here, {"pkg/app.py": SHARED})
    result = audit("pkg/app.py", "pkg", ".", "./pkg/../pkg/app.py", exit_code=1)
    assert summary(result.stdout) == (1, 1, 0)


def test_links_in_a_circle_end(here: Path) -> None:
    write(here, {"pkg/app.py": SHARED, "other/b.py": CLEAN})
    os.symlink("..", here / "pkg" / "up")
    os.symlink(".", here / "pkg" / "again")
    os.symlink("../other", here / "pkg" / "other")
    assert told(".") == ["pkg/app.py:5 ISO001"]
    assert summary(audit(".").stdout)[0] == 2


def test_a_named_link_to_a_directory_is_followed(here: Path) -> None:
    write(here, {"real/app.py": SHARED})
    os.symlink("real", here / "link")
    assert told("link") == ["link/app.py:5 ISO001"]


@pytest.mark.parametrize("target", ["nowhere.py", "broken.py"], ids=["to nothing", "to itself"])
def test_a_link_that_leads_nowhere_is_told(here: Path, target: str) -> None:
    write(here, {"app.py": SHARED})
    os.symlink(target, here / "broken.py")
    os.symlink("ann@host.1234", here / ".#app.py")  # an editor's lock
    assert told(".") == ["app.py:5 ISO001", "broken.py:1 ISO099"]
    assert told("broken.py") == ["broken.py:1 ISO099"]


def test_what_is_no_file_is_told_and_nobody_waits_for_it(here: Path) -> None:
    write(here, {"app.py": SHARED})
    os.mkfifo(here / "pipe.py")
    assert told(".") == ["app.py:5 ISO001", "pipe.py:1 ISO099"]
    assert told("/dev/null") == ["/dev/null:1 ISO099"]


def test_a_directory_that_cannot_be_listed_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, {"app.py": SHARED, "secret/a.py": SHARED})
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr("agentapp.audit.files.os.scandir", scandir)
    assert told(".") == ["app.py:5 ISO001", "secret:1 ISO099"]
    assert "cannot be read: Permission denied" in audit("secret", exit_code=2).stdout


def test_every_file_is_read_once(here: Path) -> None:
    """From a pipe, which gives what is in it to the first who asks."""
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
    assert told(".") == ["app.py:7 ISO001"]
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
    assert told(str(here)) == ["sub/app.py:5 ISO001"]
    assert told("../work2") == [f"{tmp_path}/work2/app.py:5 ISO001"]
    monkeypatch.chdir(here / "sub")
    assert told(".") == ["app.py:5 ISO001"]


def test_a_name_that_is_not_utf_8_is_shown_somehow(here: Path) -> None:
    (here / os.fsdecode(b"caf\xe9.py")).write_text(SHARED)
    for form in ("text", "json", "sarif", "github"):
        assert "xe9.py" in audit(".", "--format", form, exit_code=1).stdout
    (place,) = find(["."], lambda _: False).places
    assert place.module == "caf\\xe9"
    assert opened(place).source == SHARED.encode()


# -- names of modules


@pytest.mark.parametrize("named", [".", "src", "src/pkg", "src/pkg/sub", "src/pkg/sub/c.py"])
def test_a_module_in_a_package_is_called_as_in_an_import(here: Path, named: str) -> None:
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
def test_what_one_file_shares_and_another_changes_is_found(here: Path, named: str) -> None:
    write(
        here,
        {"src/pkg/__init__.py": "", "src/pkg/state.py": STATE, "src/pkg/views.py": changes("pkg.state")},
    )
    (one,) = found(named)
    assert (one["path"], one["line"]) == ("src/pkg/views.py", 5)
    assert ", from src/pkg/state.py:1," in one["message"]


@pytest.mark.parametrize("imported", ["app.state", ".state"])
def test_packages_of_the_same_name_are_kept_apart(here: Path, imported: str) -> None:
    """Each of them changes its own, also if it says `app`."""
    for service in ("one", "two", "three"):
        write(
            here,
            {
                f"{service}/app/__init__.py": "",
                f"{service}/app/state.py": STATE,
                f"{service}/app/views.py": changes(imported),
                f"{service}/main.py": "",
            },
        )
    homes = [re.search(r", from (\S+):1,", item["message"]) for item in found(".")]
    assert [home and home[1] for home in homes] == [f"{s}/app/state.py" for s in ("one", "three", "two")]


def test_no_two_files_are_the_same_module(here: Path) -> None:
    names = ["a/x.py", "b/x.py", "foo.py", "foo/__init__.py", "foo.pyw", "v.1/c.py", "v_1/c.py", "d/foo#2.py"]
    write(here, {f"{top}/{name}": SHARED for name in names for top in ("p", "q")})
    for paths in (["."], ["p", "q"], ["p/a", "p/b", "q/a/x.py", "q/b/x.py", "p/d", "p"]):
        places = find(paths, lambda _: False).places
        assert len({place.module for place in places}) == len(places)
    assert len(told("p", "q")) == 2 * len(names)


@pytest.mark.parametrize(
    ("packages", "imported"),
    [
        (["src/app/__init__.py"], "app.sub.state"),  # what is inside a package is of it, also without a file
        ([], "app.sub.state"),
        ([], "sub.state"),  # the program is started in `app`
        (["src/app/sub/__init__.py"], "sub.state"),
    ],
)
def test_imports_are_followed_where_a_directory_has_no_init(
    here: Path, packages: list[str], imported: str
) -> None:
    write(here, dict.fromkeys(packages, ""))
    write(here, {"src/app/sub/state.py": STATE, "src/app/views.py": changes(imported)})
    (one,) = found(".")
    assert (one["path"], one["line"]) == ("src/app/views.py", 5)
    assert ", from src/app/sub/state.py:1," in one["message"]


def test_a_package_has_no_modules_of_its_own_instead_of_the_libraries(here: Path) -> None:
    """Only where a directory is no package does an import begin in it."""
    write(here, {"app/__init__.py": "", "app/state.py": STATE, "app/views.py": changes("state")})
    assert all("app/state.py" not in item["message"] for item in found("."))


def test_a_package_comes_before_a_file_of_the_same_name(here: Path) -> None:
    write(here, {"state.py": "", "state/__init__.py": STATE, "views.py": changes("state")})
    (one,) = found(".")
    assert ", from state/__init__.py:1," in one["message"]


# -- reading


def test_a_file_that_went_away_is_unreadable(here: Path) -> None:
    with pytest.raises(Unreadable, match="does not exist"):
        opened(Place(str(here / "gone.py"), "gone.py", "gone", False))


# -- json and baselines


def test_json(here: Path) -> None:
    write(here, {"app.py": SHARED})
    assert json.loads(audit(".", "--format", "json", exit_code=1).stdout) == [
        {
            "path": "app.py",
            "line": 5,
            "rule": "ISO001",
            "severity": "error",
            "message": "`HISTORY`, from app.py:1, is changed by `chat`",
        }
    ]


def test_json_of_nothing_is_an_empty_list(here: Path) -> None:
    write(here, {"app.py": CLEAN})
    assert audit(".", "--format", "json", exit_code=0).stdout == "[]\n"


def test_findings_are_in_order(here: Path) -> None:
    write(here, {"b.py": SHARED, "a.py": SHARED + SHARED.replace("HISTORY", "OTHER"), "c/a.py": SHARED})
    assert told("c", "b.py", "a.py") == [
        "a.py:5 ISO001",
        "a.py:10 ISO001",
        "b.py:5 ISO001",
        "c/a.py:5 ISO001",
    ]


def keep(here: Path, *args: str) -> str:
    (here / "baseline.json").write_text(audit(*args, "--format", "json").stdout)
    return "baseline.json"


def test_what_is_in_the_baseline_is_not_told_again(here: Path) -> None:
    write(here, {"app.py": SHARED})
    known = keep(here, ".")
    result = audit(".", "--baseline", known, exit_code=0)
    assert result.stdout == "1 file, 0 findings, 0 suppressed, 1 in the baseline\n"
    assert found(".", "--baseline", known) == []


def test_edits_above_do_not_bring_it_back(here: Path) -> None:
    more = "\n\ndef other(text):\n    HISTORY.clear()\n\n\ndef third(text):\n    HISTORY.clear()\n"
    write(here, {"app.py": SHARED + more})
    assert "lines 9, 13" in found(".")[0]["message"]
    known = keep(here, ".")
    write(here, {"app.py": "import os\n" * 90 + SHARED + more})
    assert "lines 99, 103" in found(".")[0]["message"]
    assert found(".", "--baseline", known) == []


@pytest.mark.parametrize(
    "edited",
    [
        SHARED.replace("HISTORY", "HISTORY2"),
        SHARED.replace("chat", "chat2"),
        SHARED + SHARED.replace("HIS", "MY"),
    ],
    ids=["another object", "another function", "one more"],
)
def test_what_is_new_is_told(here: Path, edited: str) -> None:
    write(here, {"app.py": SHARED})
    known = keep(here, ".")
    write(here, {"app.py": edited})
    assert len(found(".", "--baseline", known)) == 1


def test_the_same_in_another_file_is_new(here: Path) -> None:
    write(here, {"app.py": SHARED})
    known = keep(here, ".")
    write(here, {"b.py": SHARED})
    assert told(".", "--baseline", known) == ["b.py:5 ISO001"]


def test_two_in_the_baseline_excuse_two() -> None:
    def finding(line: int) -> Finding:
        return Finding("app.py", line, "ISO001", "error", f"`X`, from app.py:{line}, is changed by `f`")

    two = baseline.key_of("app.py", "ISO001", finding(1).message)
    excused = baseline.nothing() + baseline.nothing()
    excused[two] = 2
    assert baseline.without(map(finding, (4, 5)), excused) == ([], 2)
    assert baseline.without(map(finding, (4, 5, 6)), excused) == ([finding(6)], 2)
    assert excused[two] == 2


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        ("`X`, from a.py:1, is changed by `f`", "`X`, from a.py:20, is changed by `f`", True),
        ("changed in line 9)", "changed in lines 9, 10, 12)", True),
        ("by `f@12`", "by `f@13`", True),
        ("by `<lambda:3:4>`", "by `<lambda:33:8>`", True),
        ("by `step1`", "by `step2`", False),
        ("by `v1_2`", "by `v1_3`", False),
        ("`X`, from a1.py:1,", "`X`, from a2.py:1,", False),
    ],
)
def test_which_messages_are_the_same(one: str, other: str, are_alike: bool) -> None:
    assert (baseline.key_of("a", "b", one) == baseline.key_of("a", "b", other)) == are_alike


def test_a_file_that_cannot_be_read_is_never_excused(here: Path) -> None:
    write(here, {"app.py": "("})
    known = keep(here, ".")
    assert "ISO099" in Path(known).read_text()
    audit(".", "--baseline", known, exit_code=2)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "is not a list, as --format json prints it"),
        (b"[1]", "has no path, rule and message in its finding 1"),
        (b'[{"path": "a", "rule": "ISO001"}]', "has no path, rule and message in its finding 1"),
        (
            b'[{"path": "a", "rule": "I", "message": "m"}, {"path": "a", "rule": 1, "message": "m"}]',
            "has no path, rule and message in its finding 2",
        ),
    ],
)
def test_a_bad_baseline_is_one_line_and_exit_code_2(here: Path, content: bytes | None, problem: str) -> None:
    write(here, {"app.py": SHARED} | ({"known.json": content} if content is not None else {}))
    result = audit(".", "--baseline", "known.json", exit_code=2)
    assert (result.stdout, result.stderr) == ("", f"agentapp: the baseline known.json {problem}\n")


def test_a_baseline_that_is_a_directory(here: Path) -> None:
    assert (
        "the baseline . cannot be read: Is a directory" in audit(".", "--baseline", ".", exit_code=2).stderr
    )


def test_a_baseline_as_windows_writes_it(here: Path) -> None:
    write(here, {"app.py": SHARED})
    (here / "known.json").write_text(audit(".", "--format", "json").stdout, encoding="utf-16")
    audit(".", "--baseline", "known.json", exit_code=0)


# -- SARIF


def valid_sarif(text: str) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(text)
    jsonschema.Draft4Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(log)
    return log


def test_the_schema_is_one_that_says_no() -> None:
    with pytest.raises(jsonschema.ValidationError):
        valid_sarif('{"version": "2.1.0", "runs": [{"tool": {"driver": {}}}]}')
    with pytest.raises(jsonschema.ValidationError):
        valid_sarif('{"version": "2.0.0", "runs": []}')


def test_sarif_follows_the_official_schema(here: Path) -> None:
    write(here, {"a b/äpp.py": SHARED, "broken.py": "(", "clean.py": "x = 1  # agentapp: shared ok - x\n"})
    log = valid_sarif(audit(".", "--format", "sarif", exit_code=2).stdout)
    (one,) = log["runs"]
    driver = one["tool"]["driver"]
    assert (log["version"], driver["semanticVersion"]) == ("2.1.0", __version__)
    assert [rule["id"] for rule in driver["rules"]] == list(RULES)
    for rule in driver["rules"]:
        known = RULES[rule["id"]]
        assert rule["name"].isalnum()
        assert rule["shortDescription"]["text"].lower() == f"{known.title}.".lower()
        assert rule["fullDescription"]["text"] == known.why
        assert known.fix in rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] == known.severity
    assert one["invocations"] == [{"executionSuccessful": False}]
    first, *_ = one["results"]
    assert (first["ruleId"], first["level"]) == ("ISO001", "error")
    assert driver["rules"][first["ruleIndex"]]["id"] == "ISO001"
    assert first["message"]["text"] == "`HISTORY`, from a b/äpp.py:1, is changed by `chat`"
    assert first["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "a%20b/%C3%A4pp.py", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 5},
            }
        }
    ]
    assert [result["ruleId"] for result in one["results"]] == ["ISO001", "ISO099", "ISO091"]


def test_sarif_of_nothing(here: Path) -> None:
    write(here, {"app.py": CLEAN})
    (one,) = valid_sarif(audit(".", "--format", "sarif", exit_code=0).stdout)["runs"]
    assert (one["results"], one["invocations"]) == ([], [{"executionSuccessful": True}])


def test_sarif_names_a_file_elsewhere_in_full(here: Path, tmp_path: Path) -> None:
    write(tmp_path, {"else where/app.py": SHARED})
    (one,) = valid_sarif(audit("../else where", "--format", "sarif").stdout)["runs"][0]["results"]
    where = one["locations"][0]["physicalLocation"]["artifactLocation"]
    assert where == {"uri": f"file://{tmp_path}/else%20where/app.py"}


def fingerprints(*args: str) -> list[str]:
    results = valid_sarif(audit(*args, "--format", "sarif").stdout)["runs"][0]["results"]
    return [value for result in results for value in result["partialFingerprints"].values()]


def test_fingerprints_stay_when_lines_move_and_differ_otherwise(here: Path) -> None:
    write(here, {"app.py": SHARED, "b.py": SHARED})
    before = fingerprints(".")
    write(here, {"app.py": f"# moved\n{SHARED}", "b.py": f"\n\n{SHARED}"})
    assert fingerprints(".") == before
    assert len(set(before)) == 2


def test_two_results_that_are_alike_have_fingerprints_of_their_own() -> None:
    twins = tuple(Finding("app.py", line, "ISO001", "error", "the same") for line in (1, 2))
    text = as_sarif(Report(1, twins, 0, 0, (), {}), version="1.0.0")
    first, second = valid_sarif(text)["runs"][0]["results"]
    assert first["partialFingerprints"] != second["partialFingerprints"]


# -- GitHub


def test_github(here: Path) -> None:
    write(here, {"a,b:c%/app.py": SHARED})
    assert audit(".", "--format", "github", exit_code=1).stdout == (
        "::error file=a%2Cb%3Ac%25/app.py,line=5,title=ISO001 a module-level object is changed"
        "::`HISTORY`, from a,b:c%25/app.py:1, is changed by `chat`\n"
    )


def test_github_of_nothing_is_nothing(here: Path) -> None:
    write(here, {"app.py": CLEAN})
    assert audit(".", "--format", "github", exit_code=0).stdout == ""


@pytest.mark.parametrize(
    ("severity", "level"), [("error", "error"), ("warning", "warning"), ("note", "notice")]
)
def test_github_levels_and_line_ends(severity: Any, level: str) -> None:
    finding = Finding("a\r\nb.py", 3, "ISO007", severity, "one\ntwo\r50%, and: so on")
    assert as_github(Report(1, (finding,), 0, 0, (), {})) == (
        f"::{level} file=a%0D%0Ab.py,line=3,title=ISO007 a cache that depends on the caller%2C "
        "or whose results are changed::one%0Atwo%0D50%25, and: so on"
    )


# -- text


def test_text(here: Path) -> None:
    write(here, {"app.py": SHARED.replace("\n\n\n", "\n\n")})
    assert audit(".", exit_code=1).stdout == (
        "app.py:4: ISO001 error: a module-level object is changed\n"
        "  `HISTORY`, from app.py:1, is changed by `chat`\n"
        "    3 | def chat(text):\n"
        "  > 4 |     HISTORY.append(text)\n"
        "    5 |\n"
        f"  fix: {RULES['ISO001'].fix}\n"
        "\n"
        "1 file, 1 finding, 0 suppressed\n"
    )


def test_the_first_and_the_last_line_have_only_one_neighbour() -> None:
    def excerpt(line: int) -> list[str]:
        finding = Finding("a.py", line, "ISO001", "error", "message")
        text = as_text(Report(1, (finding,), 0, 0, (), {"a.py": b"one\n\ttwo\nthree"}), coloured=False)
        return [line for line in text.splitlines() if "|" in line]

    assert excerpt(1) == ["  > 1 | one", "    2 |     two"]
    assert excerpt(3) == ["    2 |     two", "  > 3 | three"]
    assert excerpt(9) == []


def test_source_cannot_act_on_the_terminal(here: Path) -> None:
    evil = "HISTORY.append(text)  # \x1b[2J\x9b31m\x07\u202e\x0c"
    write(here, {"app.py": SHARED.replace("HISTORY.append(text)", evil), "\x1b[31m.py": SHARED})
    shown = audit(".", exit_code=1).stdout
    assert "\\x1b[2J\\x9b31m\\x07\\u202e\\x0c" in shown
    assert "\\x1b[31m.py:5: ISO001" in shown
    assert not set(shown) & set("\x1b\x9b\x07\u202e\x0c")


def test_very_long_lines_are_cut(here: Path) -> None:
    write(here, {"app.py": SHARED.rstrip() + "; x = '" + "x" * 100_000 + "'\n"})
    assert max(map(len, audit(".", exit_code=1).stdout.splitlines())) < 300


def test_text_counts_what_is_suppressed(here: Path) -> None:
    write(
        here,
        {"app.py": SHARED, "b.py": SHARED.replace("[]", "[]  # agentapp: shared ok - a log"), "c.py": ""},
    )
    assert summary(audit(".", exit_code=1).stdout) == (3, 1, 1)


def test_a_terminal_that_knows_few_characters(here: Path) -> None:
    write(here, {"app.py": SHARED.replace("(text)\n", "(text)  # é\n")})
    env = {"PYTHONIOENCODING": "ascii:strict"}
    done = run(SCRIPTS / "agentapp", "audit", "app.py", directory=here, env=env)
    assert (done.returncode, done.stderr) == (1, "")
    assert "HISTORY.append(text)  # \\xe9" in done.stdout


def test_colours_are_for_terminals(here: Path) -> None:
    write(here, {"app.py": SHARED})
    shown = on_terminal("app.py", directory=here, stream="stdout")
    assert shown.exit_code == 1
    assert "\x1b[31mISO001 error\x1b[0m" in shown.terminal
    assert re.sub(r"\x1b\[\d*m", "", shown.terminal) == audit("app.py").stdout
    assert shown.piped == ""


def test_no_color_is_obeyed(here: Path) -> None:
    write(here, {"app.py": SHARED})
    shown = on_terminal("app.py", directory=here, stream="stdout", env={"NO_COLOR": "1"})
    assert shown.terminal == audit("app.py").stdout


@pytest.mark.parametrize(("count", "is_told"), [(300, False), (301, True)])
def test_progress_is_told_to_who_waits(here: Path, count: int, is_told: bool) -> None:
    write(here, {f"m{n}.py": "" for n in range(count)})
    shown = on_terminal(".", "--format", "json", directory=here, stream="stderr")
    assert (shown.exit_code, shown.piped) == (0, "[]\n")
    assert ("reading 250 of 301 files" in shown.terminal) == is_told
    assert is_told or shown.terminal == ""


def test_progress_is_not_told_to_a_pipe(here: Path) -> None:
    write(here, {f"m{n}.py": "" for n in range(301)})
    assert audit(".", exit_code=0).stderr == ""


# -- suppressions


@pytest.mark.parametrize("separator", [" - ", " -- ", " – ", ": ", " : ", "-", " —  "])
def test_a_suppression_with_a_reason(here: Path, separator: str) -> None:
    comment = f"(text)  # agentapp: shared ok{separator}only a log\n"
    write(here, {"app.py": SHARED.replace("(text)\n", comment)})
    assert summary(audit(".", exit_code=0).stdout) == (1, 0, 1)


@pytest.mark.parametrize("said", ["", " -", " - ", ":", " because", " - ...", " - # noqa", "  # noqa"])
def test_a_suppression_without_a_reason_is_a_finding_and_suppresses_nothing(here: Path, said: str) -> None:
    write(here, {"app.py": SHARED.replace("(text)\n", f"(text)  # agentapp: shared ok{said}\n")})
    assert told(".") == ["app.py:5 ISO001", "app.py:5 ISO090"]


@pytest.mark.parametrize(
    "comment", ["# noqa # agentapp: shared ok - a log", "#agentapp: shared ok - see #12"]
)
def test_a_suppression_may_share_its_comment(here: Path, comment: str) -> None:
    write(here, {"app.py": SHARED.replace("(text)\n", f"(text)  {comment}\n")})
    assert told(".") == []


@pytest.mark.parametrize(
    "line",
    [
        'HISTORY.append("# agentapp: shared ok - no comment")',
        'HISTORY.append("""\n# agentapp: shared ok - no comment\n""")',
        "HISTORY.append(text)  # agentapp: shared okay - misspelt",
        "HISTORY.append(text)  # see agentapp: shared ok - somewhere",
    ],
)
def test_what_is_no_suppression(here: Path, line: str) -> None:
    write(here, {"app.py": SHARED.replace("HISTORY.append(text)", line)})
    assert told(".") == ["app.py:5 ISO001"]


MANY_LINES = """\
HISTORY = []


def chat(text):
    print({first}
        text,
        HISTORY.append(text),{here}
    ){last}
"""


@pytest.mark.parametrize("at", ["first", "here", "last"])
def test_a_suppression_on_the_first_line_of_the_statement(here: Path, at: str) -> None:
    places = dict.fromkeys(("first", "here", "last"), "")
    write(here, {"app.py": MANY_LINES.format(**places)})
    assert told(".") == ["app.py:7 ISO001"]
    comment = "  # agentapp: shared ok - a log"
    write(here, {"app.py": MANY_LINES.format(**places | {at: comment})})
    assert told(".") == []


def test_a_suppression_elsewhere_in_the_function_does_not_count(here: Path) -> None:
    write(here, {"app.py": SHARED.replace("chat(text):", "chat(text):  # agentapp: shared ok - a log")})
    assert told(".") == ["app.py:4 ISO091", "app.py:5 ISO001"]


CACHED = """\
from functools import lru_cache


class Shop:
    @staticmethod
    def a(): ...

    @lru_cache{first}
    @some(
        1,{second}
    )
    def price(self, sku):{third}
        return sku{inside}
"""


@pytest.mark.parametrize("at", ["first", "second", "third"])
def test_a_suppression_on_a_decorator(here: Path, at: str) -> None:
    places, comment = (
        dict.fromkeys(("first", "second", "third", "inside"), ""),
        "  # agentapp: shared ok - one",
    )
    write(here, {"app.py": CACHED.format(**places)})
    assert [item["rule"] for item in found(".")] == ["ISO007"]
    write(here, {"app.py": CACHED.format(**places | {at: comment})})
    assert told(".") == []
    write(here, {"app.py": CACHED.format(**places | {"inside": comment})})
    assert [item["rule"] for item in found(".")] == ["ISO007", "ISO091"]


def test_a_suppression_where_the_object_lives_counts_for_all_who_change_it(here: Path) -> None:
    """Also if that is another file, in a directory with an odd name."""
    write(
        here,
        {
            "a (b), from c/state.py": "HISTORY = []  # agentapp: shared ok - a log\n",
            "a (b), from c/x.py": changes("state"),
            "a (b), from c/y.py": changes("state"),
        },
    )
    result = audit("a (b), from c", exit_code=0)
    assert summary(result.stdout)[0] == 3
    assert summary(result.stdout)[2] >= 1
    write(here, {"a (b), from c/state.py": STATE})
    assert audit("a (b), from c").exit_code == 1


def test_a_suppression_where_a_shared_instance_lives(here: Path) -> None:
    bad = RULES["ISO004"].bad
    write(here, {"app.py": bad})
    assert "ISO004" in audit(".", exit_code=1).stdout
    write(
        here, {"app.py": bad.replace("agent = Agent()", "agent = Agent()  # agentapp: shared ok - a counter")}
    )
    assert told(".") == []


def test_every_place_that_a_message_names_counts() -> None:
    def sort(message: str, line: int, path: str = "b.py") -> tuple[str, ...]:
        comments = {path: suppressions.Comments({line: "because"}, {})}
        left = suppressions.sort_out([Hazard("a.py", 9, "ISO004", message)], comments).left
        return tuple(hazard.rule for hazard in left)

    message = "`A.x` (odd) of `a` (b.py:3), from b.py:12, is changed by `f` (also changed in lines 4, 5)"
    assert sort(message, 3) == ()
    assert sort(message, 12) == ()
    assert sort(message, 1) == ("ISO004", "ISO091")
    assert sort(message, 4) == ("ISO004", "ISO091")
    assert sort(message, 12, "other/b.py") == ("ISO004", "ISO091")


def test_a_suppression_of_nothing_is_a_finding(here: Path) -> None:
    write(
        here, {"app.py": "LIMIT = 10  # agentapp: shared ok - only read\n\n# agentapp: shared ok - or this\n"}
    )
    assert told(".") == ["app.py:1 ISO091", "app.py:3 ISO091"]


def test_a_suppression_of_a_rule_that_is_off_is_not_one_of_nothing(here: Path) -> None:
    write(here, {"app.py": SHARED.replace("[]", "[]  # agentapp: shared ok - a log")})
    configure(here, 'ignore = ["ISO001"]')
    assert summary(audit(".", exit_code=0).stdout) == (1, 0, 0)


def test_comments_are_looked_for_only_where_there_may_be_some(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, {"app.py": SHARED, "b.py": "# agentapp: shared ok - x\n", "c.py": "# agentapp: sha\n"})
    real, seen = suppressions.tokenize.tokenize, list[int]()

    def tokenize(readline: Any) -> Iterator[Any]:
        seen.append(1)
        return real(readline)

    monkeypatch.setattr(suppressions.tokenize, "tokenize", tokenize)
    assert told(".") == ["app.py:5 ISO001", "b.py:1 ISO091"]
    assert len(seen) == 1


def test_comments_that_cannot_be_read_are_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenize(readline: Any) -> Iterator[Any]:
        raise suppressions.tokenize.TokenError("EOF in multi-line statement", (1, 0))

    write(here, {"app.py": f"# agentapp: shared ok\n{SHARED}"})
    monkeypatch.setattr(suppressions.tokenize, "tokenize", tokenize)
    assert told(".") == ["app.py:1 ISO099", "app.py:6 ISO001"]


# -- [tool.agentapp.audit]


def test_paths_come_from_the_configuration_if_none_is_given(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, {"src/app.py": SHARED, "lib/b.py": SHARED, "other/c.py": SHARED})
    configure(here, 'paths = ["src", "lib/b.py"]')
    assert told() == ["lib/b.py:5 ISO001", "src/app.py:5 ISO001"]
    assert told("other") == ["other/c.py:5 ISO001"]
    monkeypatch.chdir(here / "src")
    assert told() == [f"{here}/lib/b.py:5 ISO001", "app.py:5 ISO001"]


def test_the_configuration_is_the_one_nearest_above_the_first_path(here: Path) -> None:
    write(
        here,
        {
            "one/pyproject.toml": "[tool.agentapp.audit.severity]\nISO001 = 'note'\n",
            "one/src/app.py": SHARED,
            "two/app.py": SHARED,
        },
    )
    configure(here, "severity = {ISO001 = 'warning'}")
    assert {item["severity"] for item in found("one/src/app.py", "two")} == {"note"}
    assert {item["severity"] for item in found("one", "two")} == {"note"}
    assert {item["severity"] for item in found("two", "one")} == {"warning"}


def test_the_configuration_of_the_current_directory_is_used_for_what_has_none(
    here: Path, tmp_path: Path
) -> None:
    write(tmp_path, {"elsewhere/app.py": SHARED})
    configure(here, 'ignore = ["ISO001"]')
    audit("../elsewhere", exit_code=0)


@pytest.mark.parametrize("content", ["", "[project]\nname = 'x'\n", "[tool.agentapp]\nx = 1\n"])
def test_a_pyproject_that_says_nothing_about_it(here: Path, content: str) -> None:
    write(here, {"app.py": SHARED, "pyproject.toml": content})
    assert told(".") == ["app.py:5 ISO001"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("gen", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("gen/", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("src/gen", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("src/gen/**", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("**/gen/**", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("./src/*.py", ["app.py", "src/gen/deep/d.py"]),
        ("src/**/*.py", ["app.py"]),
        ("*_pb2.py", ["app.py", "src/a.py", "src/gen/deep/d.py"]),
        ("src/?.py", ["app.py", "src/b_pb2.py", "src/gen/deep/d.py"]),
        ("src/[ab]*", ["app.py", "src/gen/deep/d.py"]),
        ("**/d.py", ["app.py", "src/a.py", "src/b_pb2.py"]),
        ("a.py", ["app.py", "src/b_pb2.py", "src/gen/deep/d.py"]),
        ("rc", ["app.py", "src/a.py", "src/b_pb2.py", "src/gen/deep/d.py"]),
        ("[", ["app.py", "src/a.py", "src/b_pb2.py", "src/gen/deep/d.py"]),
    ],
)
def test_exclude(here: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, left: list[str]) -> None:
    write(here, dict.fromkeys(("app.py", "src/a.py", "src/b_pb2.py", "src/gen/deep/d.py"), SHARED))
    configure(here, f"exclude = ['{pattern}']\npaths = ['.']")
    assert [item["path"] for item in found(".")] == left
    write(here, {"elsewhere/x.txt": ""})
    monkeypatch.chdir(here / "elsewhere")
    assert [item["path"] for item in found()] == [f"{here}/{path}" for path in left]


def test_what_is_excluded_is_read_if_it_is_named(here: Path) -> None:
    write(here, {"gen/a.py": SHARED, "broken.py": "("})
    configure(here, "exclude = ['gen', 'broken.py']")
    audit(".", exit_code=0)
    assert told("gen/a.py") == told("gen") == ["gen/a.py:5 ISO001"]


TWO_RULES = f"{SHARED}\n\nCOUNT = 0\n\n\ndef count():\n    global COUNT\n    COUNT += 1\n"


@pytest.mark.parametrize(
    ("table", "codes"),
    [
        ("", ["ISO001", "ISO002"]),
        ("rules = ['ISO002']", ["ISO002"]),
        ("rules = ['ISO001', 'ISO002']\nignore = ['ISO002']", ["ISO001"]),
        ("rules = []", []),
        ("ignore = ['ISO001']", ["ISO002"]),
        ("severity = {ISO001 = 'off'}", ["ISO002"]),
        ("rules = ['ISO002']\nseverity = {ISO002 = 'off'}", []),
    ],
)
def test_which_rules_are_told(here: Path, table: str, codes: list[str]) -> None:
    write(here, {"app.py": TWO_RULES})
    configure(here, table)
    assert [item["rule"] for item in found(".")] == codes
    assert audit(".").exit_code == bool(codes)


@pytest.mark.parametrize("severity", ["error", "warning", "note"])
def test_severity(here: Path, severity: str) -> None:
    write(here, {"app.py": SHARED})
    configure(here, f"severity.ISO001 = '{severity}'")
    assert found(".")[0]["severity"] == severity
    assert f"ISO001 {severity}: " in audit(".", exit_code=1).stdout
    (one,) = valid_sarif(audit(".", "--format", "sarif").stdout)["runs"][0]["results"]
    assert one["level"] == severity


@pytest.mark.parametrize("table", ["rules = ['ISO001']", "rules = []"])
def test_a_file_that_cannot_be_read_is_told_whatever_the_rules(here: Path, table: str) -> None:
    write(here, {"app.py": "("})
    configure(here, table)
    assert told(".") == ["app.py:1 ISO099"]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("path = ['src']", "path: is not known; there are paths, exclude, rules, ignore, severity"),
        ("paths = 'src'", "paths: must be a list of texts"),
        ("paths = [1]", "paths: must be a list of texts"),
        ("paths = ['']", "paths: must be a list of texts"),
        ("exclude = {}", "exclude: must be a list of texts"),
        ("exclude = [['a']]", "exclude: must be a list of texts"),
        ("rules = 'ISO001'", "rules: must be a list of texts"),
        ("rules = ['ISO001', 'ISO017x']", "rules: there is no rule 'ISO017x'"),
        ("ignore = ['iso001']", "ignore: there is no rule 'iso001'"),
        ("ignore = true", "ignore: must be a list of texts"),
        ("ignore = ['ISO099']", "ignore: ISO099 cannot be turned off; exclude the file instead"),
        ("severity = 'error'", "severity: must be a table of rules"),
        ("severity = {X = 'error'}", "severity: there is no rule 'X'"),
        (
            "severity = {ISO001 = 'fatal'}",
            "severity.ISO001: must be one of error, warning, note, off; not 'fatal'",
        ),
        ("severity = {ISO001 = 1}", "severity.ISO001: must be one of error, warning, note, off; not 1"),
        ("severity = {ISO001 = []}", "severity.ISO001: must be one of error, warning, note, off; not []"),
        ("severity = {ISO099 = 'off'}", "severity.ISO099: cannot be turned off; exclude the file instead"),
    ],
)
def test_a_bad_configuration_is_one_line_that_names_the_key(here: Path, table: str, problem: str) -> None:
    write(here, {"app.py": SHARED})
    configure(here, table)
    result = audit(".", exit_code=2)
    expected = f"agentapp: {here}/pyproject.toml: [tool.agentapp.audit] {problem}\n"
    assert (result.stdout, result.stderr) == ("", expected)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[tool", "pyproject.toml is not TOML: "),
        (b"\xff\xfe", "pyproject.toml is not TOML: "),
        (b"x = " + b"[" * 10_000, "pyproject.toml is not TOML: "),
        (b"tool = 1", "pyproject.toml: tool: must be a table\n"),
        (b"tool.agentapp = 1", "pyproject.toml: agentapp: must be a table\n"),
        (b"tool.agentapp.audit = []", "pyproject.toml: audit: must be a table\n"),
    ],
)
def test_a_bad_pyproject_is_one_line(here: Path, content: bytes, problem: str) -> None:
    write(here, {"app.py": SHARED, "pyproject.toml": content})
    result = audit(".", exit_code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"agentapp: {here}/{problem}")
    assert result.stderr.count("\n") == 1


def test_configured_paths_that_do_not_exist_are_told(here: Path) -> None:
    configure(here, 'paths = ["nowhere", "with\\u0000null"]')
    result = audit(exit_code=2)
    assert "nowhere:1: ISO099" in result.stdout
    assert result.stderr == "agentapp: 2 paths could not be read\n"


# -- --explain


@pytest.mark.parametrize("code", RULES)
def test_each_rule_is_explained(code: str) -> None:
    rule, text = RULES[code], audit("--explain", code, exit_code=0).stdout
    assert text.startswith(f"{code}: {rule.title} ({rule.severity})\n")
    parts = [rule.why, *rule.bad.split("\n"), "Good:", *rule.good.split("\n"), rule.fix]
    position = 0
    for part in parts:
        position = text.index(part, position)


def test_an_unknown_rule_cannot_be_explained() -> None:
    result = audit("--explain", "ISO500", exit_code=2)
    assert (result.stdout, result.stderr) == (
        "",
        f"agentapp: there is no rule 'ISO500'; there are {', '.join(RULES)}\n",
    )


# -- pre-commit


def test_the_hook_for_pre_commit_runs_the_command_on_the_configured_paths(here: Path) -> None:
    lines = (ROOT / ".pre-commit-hooks.yaml").read_text().splitlines()
    hook = dict(line[2:].split(": ", 1) for line in lines if line[:2] in ("- ", "  "))
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("agentapp-audit", "python", "false")
    write(here, {"src/app.py": SHARED})
    configure(here, "paths = ['src']")
    name, *args = hook["entry"].split()
    done = subprocess.run([SCRIPTS / name, *args], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(" ")[0]) == (1, "src/app.py:5:")
