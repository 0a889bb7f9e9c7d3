"""What the admin pages cost when there are a million chats.

    python -m bench.admin [--database sqlite|postgresql] [--sessions 1000000] [--count 5]

Two fresh servers with default settings: one with a thousand chats, one with as many as asked for, of a tenth
as many users in a hundred tenants. An operator and an admin of one tenant load each admin page, the page
after it where there is one, and filters. What counts is the ratio of the large to the small one.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path

from agentapp.storage import migrate
from agentapp.web.admin.navigation import PAGES
from bench.many_rows import fill
from tests.support.databases import migrated_in
from tests.support.http_client import Visitor
from tests.support.server import SCRIPTS, server
from tests.support.server_users import add_people
from tests.support.users import PASSWORD

SERVE = (SCRIPTS / "agentapp", "serve")
SMALL = 1_000
TENANTS = 100
NEXT = re.compile(r'rel="next" href="([^"]+)"')
# Beside each page as it is: what people look for on them.
MORE = (
    "/admin/isolation?window=24h",
    "/admin/isolation?window=7d",
    "/admin/breakers?show=failing",
    "/admin/breakers?scope=user&name=person-1",
    "/admin/limits?window=7d",
    "/admin/limits?list=tenants",
    "/admin/limits?user=person-1",
    "/admin/usage?tenant=tenant-1",
    "/admin/usage/users",
    "/admin/usage/tenants",
    "/admin/users?q=person-7",
    "/admin/users?tenant=tenant-1",
    "/admin/audit-log?action=chat-deleted",
    "/admin/audit-log?user=person-1",
    "/admin/audit-log?action=chat-deleted&user=person-1",
    "/admin/audit-log?action=isolation-violated&user=person-1",
    "/admin/audit-log?action=isolation-violated&from=2000-01-01&to=2000-01-02",
    "/admin/audit-log?user=person-1&subject=person-2",
    "/admin/audit-log?request=r500",
    "/admin/audit-log?user=nobody",
    "/admin/audit-log.csv?action=isolation-violated",
)

Seconds = Mapping[tuple[str, str], Sequence[float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--count", type=int, default=5)
    options = parser.parse_args()
    small = measured(options.database, SMALL, options.count)
    report(small, measured(options.database, options.sessions, options.count))


def measured(database: str, sessions: int, count: int) -> Seconds:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        empty = directory / "empty.sqlite3"
        migrate.upgrade(f"sqlite:///{empty}")
        with migrated_in(directory, database, empty) as url:
            began = time.monotonic()
            fill(url, sessions=sessions, users=sessions // 10, tenants=min(TENANTS, sessions // 100))
            add_people(url, ["olga"], tenant="tenant-1", role="operator")
            add_people(url, ["adam"], tenant="tenant-1", role="admin")
            print(f"{sessions:,} chats were made in {time.monotonic() - began:.0f} s", flush=True)
            env = {"AGENTAPP_DATABASE_URL": url}
            with server(directory, env=env, workers=2, threads=512, command=SERVE) as running:
                return {
                    (role, path): [seconds(visitor, path)[0] for _ in range(count)]
                    for role, visitor in visitors(running.url).items()
                    for path in paths(visitor)
                }


def visitors(url: str) -> Mapping[str, Visitor]:
    found = {"operator": Visitor(url), "admin": Visitor(url)}
    for visitor, name in zip(found.values(), ("olga", "adam"), strict=True):
        visitor.sign_in(name, PASSWORD)
    return found


def paths(visitor: Visitor) -> list[str]:
    found, pages = [], [page.path for page in PAGES]
    for path in ("/admin", *pages, *(each for each in MORE if each.startswith(tuple(pages)))):
        _, status, page = seconds(visitor, path)
        if status == 403:  # for operators
            continue
        found.append(path)
        following = NEXT.search(page)
        if following:
            found.append(unescape(following[1]))
    return found


def seconds(visitor: Visitor, path: str) -> tuple[float, int, str]:
    began = time.perf_counter()
    answer = visitor.get(path)
    assert answer.status in (200, 303, 403), f"{path}: {answer.status}"
    return time.perf_counter() - began, answer.status, answer.text


def report(small: Seconds, large: Seconds) -> None:
    """A page after the first one has another address in each database, so it is told by where it belongs."""
    least = {_told(page): statistics.median(times) for page, times in small.items()}
    print(f"{'who':9} {'page':48} {'small':>9} {'large':>9} {'worst':>9}  ratio")
    for page, times in large.items():
        role, name = _told(page)
        median, before = statistics.median(times), least.get((role, name))
        ratio = f"{median / before:.2f}" if before else "-"
        shown = (before or 0.0, median, max(times))
        print(f"{role:9} {name:48}", *(f"{each * 1000:6.0f} ms" for each in shown), f" {ratio}")


def _told(page: tuple[str, str]) -> tuple[str, str]:
    role, path = page
    return role, re.sub(r"after=[^&]+", "after=…", path)


if __name__ == "__main__":
    main()
