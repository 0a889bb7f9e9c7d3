"""Each peer as its documentation says that it is run, with whatever it would send elsewhere switched off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.turns.peers.installing import HERE

MASTER_KEY = "sk-bench"
# Both would keep what is said in a database if somebody's environment happens to name one.
NO_DATABASE = ("env", "-u", "DATABASE_URL")


@dataclass(frozen=True)
class Peer:
    """``file`` is what it serves, and is copied into the directory in which it is started.

    ``way`` is how one speaks to it (`ways.WAYS`), ``path`` where messages go. ``settles`` is how many seconds
    after its first answer all of its workers answer.
    """

    name: str
    way: str
    path: str
    ready_path: str
    file: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    settles: float = 0.0

    @property
    def source(self) -> Path:
        return HERE / self.file

    def command(self, scripts: Path, port: int, workers: str) -> list[str]:
        said = [argument.format(port=port, workers=workers) for argument in self.arguments]
        return [*NO_DATABASE, str(scripts / self.name), *said]


LITELLM = Peer(
    "litellm",
    way="chat completions",
    path="/v1/chat/completions",
    ready_path="/health/liveliness",
    file="litellm.yaml",
    # A worker that takes more than 5 s to start because the machine is busy would be killed.
    arguments=(
        *("--config", "litellm.yaml", "--host", "127.0.0.1", "--port", "{port}"),
        *("--num_workers", "{workers}", "--timeout_worker_healthcheck", "60"),
    ),
    env={
        "LITELLM_MASTER_KEY": MASTER_KEY,
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        # Tables of prices and headers: those that are installed, and not the newest from elsewhere.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    },
    settles=3.0,
)

# One process, which is what Chainlit supports: its sessions are in its memory.
CHAINLIT = Peer(
    "chainlit",
    way="chainlit",
    path="/ws/socket.io/",
    ready_path="/",
    file="chainlit_app.py",
    arguments=("run", "chainlit_app.py", "--headless", "--host", "127.0.0.1", "--port", "{port}"),
    env={"TRACELOOP_TELEMETRY": "false"},  # of a library that it brings; it has no telemetry of its own
)

PEERS = {peer.name: peer for peer in (LITELLM, CHAINLIT)}
