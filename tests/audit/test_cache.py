"""The cache: the same verdict as without it, without reading the files again."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from agentapp.audit import baseline, cache, report
from agentapp.audit.options import Options
from agentapp.audit.report import Report, audit

PIECES = (
    "ITEMS = []\n",
    "from a import ITEMS\n",
    "import a\n",
    "def add(x):\n    ITEMS.append(x)\n",
    "def put(x):\n    a.ITEMS.append(x)\n",
    "def fresh(x):\n    items = []\n    items.append(x)\n",
    "ITEMS = []  # agentapp: shared ok - for a test\n",
    "class Box:\n    things = []\n\n    def add(self, x):\n        self.things.append(x)\n",
    "def broken(:\n",
    "",
)
SHARED = PIECES[0] + PIECES[3]
NAMES = ("a.py", "b.py", "pkg/__init__.py", "pkg/a.py", "tests/test_a.py")


def audited(kept_in: Path | None) -> Report:
    return audit(["."], Options(), excused=baseline.nothing(), progress=lambda *_: None, kept_in=kept_in)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest_once: None) -> Path:
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path / "tree")
    return tmp_path / "tree"


@pytest.mark.parametrize("seed", range(12))
def test_after_any_edit_the_cached_verdict_equals_a_new_one(tree: Path, tmp_path: Path, seed: int) -> None:
    """Files are added, removed, changed and changed back, while earlier verdicts stay in the cache."""
    chance, kept_in = random.Random(seed), tmp_path / "kept"
    for _ in range(15):
        path = tree / chance.choice(NAMES)
        if path.exists() and chance.random() < 0.3:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(chance.choices(PIECES, k=chance.randrange(1, 4))))
        fresh = audited(None)
        assert audited(kept_in) == fresh
        assert audited(kept_in) == fresh


def test_an_unchanged_tree_is_not_read_again(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "a.py").write_text(SHARED)
    first = audited(tmp_path / "kept")
    assert first.findings

    def never(*args: object) -> object:
        raise AssertionError("the files were read again")

    monkeypatch.setattr(report, "read", never)
    monkeypatch.setattr(report, "hazards_in", never)
    assert audited(tmp_path / "kept") == first
    (tree / "a.py").write_text(PIECES[0])
    with pytest.raises(AssertionError, match="read again"):
        audited(tmp_path / "kept")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"hazards": [[1]], "unreadable": []}', '{"hazards": 1}']
)
def test_a_damaged_cache_file_is_ignored(tree: Path, tmp_path: Path, content: str) -> None:
    (tree / "a.py").write_text(SHARED)
    first = audited(tmp_path / "kept")
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_text(content)
    assert audited(tmp_path / "kept") == first
    shutil.rmtree(tmp_path / "kept")
    assert audited(tmp_path / "kept") == first


def test_an_unwritable_cache_directory_is_ignored(tree: Path, tmp_path: Path) -> None:
    (tree / "a.py").write_text(SHARED)
    (tmp_path / "file").write_text("")
    assert audited(tmp_path / "file" / "below").findings


def test_the_number_of_cached_trees_is_limited(tree: Path, tmp_path: Path) -> None:
    for number in range(cache.MAX_TREES + 5):
        (tree / "a.py").write_text(f"N = {number}\n")
        audited(tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == cache.MAX_TREES


def test_the_key_depends_on_files_and_the_python_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.key_of([("a.py", "a", b"x")])
    assert cache.key_of([("a.py", "a", b"x")]) == before
    assert cache.key_of([("a.py", "a", b"y")]) != before
    assert cache.key_of([("b.py", "a", b"x")]) != before
    monkeypatch.setattr("sys.version_info", (3, 99, 0))
    assert cache.key_of([("a.py", "a", b"x")]) != before


def test_the_key_depends_on_all_files_of_the_auditor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    sources = [tmp_path / "cache.py", tmp_path / "judge" / "locks.py", tmp_path / "extract" / "locks.py"]
    keys = [cache.key_of([])]
    for source in sources:
        source.parent.mkdir(exist_ok=True)
        source.write_text("one = 1\n")
        keys.append(cache.key_of([]))
    sources[1].rename(tmp_path / "judge" / "guards.py")
    keys.append(cache.key_of([]))
    assert len(set(keys)) == len(keys)
