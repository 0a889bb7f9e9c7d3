"""What each of several processes runs that load the settings at once. It imports little: there are eight."""

from __future__ import annotations

from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

from agentapp import config

ROUNDS = 20


def load_secrets(directory: Path, barrier: Barrier, answers: Queue[list[str]]) -> None:
    found = []
    for number in range(ROUNDS):
        barrier.wait(60)
        found.append(config.load({"AGENTAPP_INSTANCE": str(directory / str(number))}).secret_key)
    answers.put(found)
