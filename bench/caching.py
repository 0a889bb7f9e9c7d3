"""What the provider's prompt cache saves: a chat of ten turns with tools, with and without it.

    python -m bench.caching

The real SDK against a local Messages API that keeps a prompt cache as the real one does.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from agentapp.agents.team import Team
from agentapp.app import create_app
from agentapp.config import Settings
from agentapp.storage import migrate
from tests.support.cached_chats import TEAMS, TURNS, Chatted, chat_of_ten_turns

LINE = "{:<36}{:>10,}{:>10,}{:>10,}{:>10,}{:>12.4f}"


def measure(team: Team, cached: bool) -> Chatted:
    with tempfile.TemporaryDirectory(prefix="agentapp-bench-") as home:
        url = f"sqlite:///{Path(home, 'chats.sqlite3')}"
        migrate.upgrade(url)
        settings = Settings(instance=Path(home), database_url=url, secret_key="s" * 32)
        return chat_of_ten_turns(lambda team, wanted: create_app(wanted, team), settings, team, cached)


def main() -> None:
    os.umask(0o077)
    columns = ("tokens in", "read", "written", "out", "dollars")
    print(
        f"{f'{TURNS} turns with tools':<36}{''.join(f'{name:>10}' for name in columns[:4])}{columns[4]:>12}"
    )
    for name, team in TEAMS.items():
        costs = []
        for cached in (False, True):
            chatted = measure(team, cached)
            shown = chatted.tokens
            costs.append(chatted.cost_microusd)
            row = f"{name}, {'cached' if cached else 'not cached'}"
            dollars = chatted.cost_microusd / 1_000_000
            print(LINE.format(row, shown.input, shown.cache_read, shown.cache_written, shown.output, dollars))
            assert shown == chatted.said, f"the API says {chatted.said}"
        print(f"{name}: {1 - costs[1] / costs[0]:.0%} less\n")


if __name__ == "__main__":
    main()
