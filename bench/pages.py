"""What a page of a chat costs: in chats of 10 to 3,000 turns, and in one of hostile replies.

    python -m bench.pages [--database sqlite|postgresql] [--count 20]

A real server with the default settings. Each chat is read once, which renders what is not kept yet, and then
again and again, in turn with the others. What counts is the ratio to the page of a chat of 30 turns in the
same run. Then sixteen people at once read the chat of 300 turns, with one worker: its memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from sqlalchemy import text

from agentapp.isolation import ThreadBinder
from agentapp.storage.db import Database
from tests.server.test_load import PASSWORD, add_users
from tests.support.databases import migrated_in
from tests.support.http_client import Visitor
from tests.support.long_chats import add_turns, scope_of, straight
from tests.support.server import SCRIPTS, server

SERVE = (SCRIPTS / "agentapp", "serve")
AT_ONCE = 16
REPLY = (
    "Some *words* and `code`, [a link](https://example.com).\n\n- one\n- two\n\n```py\nx = 1 + 2\n```\n" * 8
)
LIST_BOMB = "- a\n* b\n+ c\n" * 4_000
RETRIED = [*straight(100), *[99] * 1_000]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        with migrated_in(directory, options.database, _empty(directory)) as url:
            add_users(url, ["ann"])
            measure(directory, url, options.count)


def _empty(directory: Path) -> Path:
    path = directory / "empty.sqlite3"
    path.touch()
    return path


def measure(directory: Path, url: str, count: int) -> None:
    env = {"AGENTAPP_DATABASE_URL": url}
    with server(directory, env=env, workers=2, threads=512, command=SERVE) as running:
        ann = Visitor(running.url)
        ann.sign_in("ann", PASSWORD)
        pages = make_chats(url, ann)
        first = {name: seconds(ann, path) for name, path in pages.items()}
        again: dict[str, list[float]] = {name: [] for name in pages}
        for _ in range(count):
            for name, path in pages.items():
                again[name].append(seconds(ann, path))
    report(first, again)
    with server(directory, env=env, workers=1, threads=512, command=SERVE) as running:
        (worker,) = running.children()
        readers = [replace(ann, url=running.url, cookies=dict(ann.cookies)) for _ in range(AT_ONCE)]
        readers[0].get(pages["300 turns"])
        before = memory(worker)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda reader: reader.get(pages["300 turns"]), readers))
        print(
            f"\n{AT_ONCE} at once, 300 turns: the worker has {memory(worker):.0f} MB; before {before:.0f} MB"
        )


def make_chats(url: str, ann: Visitor) -> Mapping[str, str]:
    """By name, the address of a page of each."""
    db = Database(url, ThreadBinder())
    replies: Mapping[str, tuple[Sequence[int], str]] = {
        "30 turns": (straight(30), REPLY),
        "10 turns": (straight(10), REPLY),
        "300 turns": (straight(300), REPLY),
        "3,000 turns": (straight(3_000), REPLY),
        "40 list bombs": (straight(40), LIST_BOMB),
        "a turn retried 1,000 times": (RETRIED, REPLY),
    }
    pages = {}
    for name, (follows, reply) in replies.items():
        scope = scope_of(db, ann.new_chat())
        ids = add_turns(db, scope, follows, reply)
        pages[name] = f"/chat/{scope.session_id}"
        if name == "3,000 turns":
            pages["3,000 turns, from the middle"] = f"/chat/{scope.session_id}?version={ids[1_000]}"
            pages["3,000 turns, the first page"] = (
                f"/chat/{scope.session_id}?before={ids[30]}&version={ids[-1]}"
            )
    if db.engine.dialect.name == "postgresql":
        with db.writing() as writing:
            writing.execute(text("ANALYZE"))  # as its autovacuum does within a minute
    db.close()
    return pages


def seconds(reader: Visitor, path: str) -> float:
    started = time.perf_counter()
    answer = reader.get(path)
    assert answer.status == 200, answer.text[:500]
    return time.perf_counter() - started


def report(first: Mapping[str, float], again: Mapping[str, Sequence[float]]) -> None:
    whole = statistics.median(again["30 turns"])
    print(f"{'page':32} {'first':>9} {'median':>9} {'worst':>9}   ratio to 30 turns")
    for name, times in again.items():
        median = statistics.median(times)
        figures = (first[name], median, max(times))
        print(f"{name:32}", *(f"{each * 1000:6.0f} ms" for each in figures), f"  {median / whole:.2f}")


def memory(pid: int) -> float:
    """Of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
