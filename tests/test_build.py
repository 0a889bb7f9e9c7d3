"""Which commit a checkout, a worktree, a wheel or a bare copy of the files says it is of."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from agentapp import __version__, build

ROOT = Path(__file__).parents[1]
COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40


def git(directory: Path, *arguments: str) -> str:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    command = ("git", "-C", str(directory), *who, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Made by git itself, with a package."""
    root = tmp_path / "checkout"
    (root / "agentapp").mkdir(parents=True)
    (root / "agentapp" / "file").touch()
    git(tmp_path, "init", str(root))
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    return root


def test_a_checkout_is_at_what_git_says_however_it_is_stored(checkout: Path, tmp_path: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert build.checked_out(checkout) == commit
    assert build.described(checkout / "agentapp") == f"checkout {commit[:7]}"
    git(checkout, "pack-refs", "--all")
    assert build.checked_out(checkout) == commit
    git(checkout, "checkout", "--detach")
    assert build.checked_out(checkout) == commit
    worktree = tmp_path / "worktree"
    git(checkout, "worktree", "add", "-b", "feature/one", str(worktree))
    git(worktree, "commit", "--allow-empty", "-m", "second")
    second = git(worktree, "rev-parse", "HEAD")
    assert second != commit
    assert (build.checked_out(worktree), build.checked_out(checkout)) == (second, commit)
    git(checkout, "pack-refs", "--all")
    assert build.checked_out(worktree) == second


@pytest.mark.parametrize(
    "files",
    [
        {},
        {".git/config": ""},
        {".git/HEAD": "ref: refs/heads/none\n"},
        {".git/HEAD": "ref: refs/heads/none\n", ".git/packed-refs": f"{OTHER} refs/heads/another\n"},
        {".git/HEAD": "something else\n"},
        {".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": "short"},
        {".git": "gitdir: /nowhere/at/all\n"},
        {".git/HEAD": "\x00\ufffd"},
    ],
)
def test_what_is_not_known_is_not_guessed(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert build.checked_out(tmp_path) is None
    assert build.described(tmp_path / "agentapp") == "build unknown"


def test_the_build_that_travels_along_comes_first(checkout: Path) -> None:
    shipped = checkout / "agentapp" / build.SHIPPED
    shipped.parent.mkdir()
    shipped.write_text(f"{COMMIT[:7]}, 2026-11-20\n")
    assert build.described(checkout / "agentapp") == "build 0123456, 2026-11-20"


def test_the_name_is_of_this_checkout() -> None:
    version, bracket = build.NAME.split(" ", 1)
    assert version == __version__
    assert bracket == f"({build.described(ROOT / 'agentapp')})"
    if (ROOT / ".git").exists():
        assert bracket == f"(checkout {git(ROOT, 'rev-parse', 'HEAD')[:7]})"
