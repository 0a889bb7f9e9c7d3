"""Workers and servers that end while users talk: killed, told to, or by themselves."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.support.retrying_users import (
    POLL_SECONDS,
    SECONDS_PER_WORD,
    Found,
    Installation,
    Talk,
    examine,
    examine_counts,
    examine_log,
    leftovers,
    talking,
    turns_counted,
    wait_until_quiet,
)
from tests.support.server import Server
from tests.support.server_users import rows, wait_for


def kills(installation: Installation, count: int, sessions: int = 24) -> Found:
    """Workers are killed at random moments: mostly when people are being answered again after the last time,
    sometimes while those that take the dead ones' place are still starting.
    """
    found, talks, workers = Found(), talkers(installation, sessions), list[int]()
    before = turns_counted(installation)
    with talking(talks) as crew:
        for _ in range(count - 1):
            if random.random() < 0.8:
                wait_for_messages(talks, sessions // 4)
            time.sleep(random.uniform(0, 1))  # the moment is what is random
            wait_for(lambda: bool(alive(installation.running)))
            workers.append(random.choice(alive(installation.running)))
            os.kill(workers[-1], signal.SIGKILL)
        wait_for(lambda: kill_one_that_answers(installation, workers))  # on a slow machine no other may do so
        crew.hush.set()
        wait_until_quiet(found, installation.database)
    examine(found, installation, talks)
    examine_counts(found, installation, talks, before)
    found.figures["workers killed"] = f"{len(set(workers)):,}"
    cut = sum(sent.status == "interrupted" for talk in talks for sent in talk.sent)
    found.claim(cut > 0, "no kill met a turn")
    for talk in talks:
        odd = talk.trouble.keys() - {"broken connections"}
        found.claim(not odd, f"somebody met with {odd}")
    return found


def kill_one_that_answers(installation: Installation, killed: list[int]) -> bool:
    """Of those killed before, one may still be about to end, with its turns not yet taken for dead."""
    for pid in set(alive(installation.running)) - set(killed):
        with suppress(ProcessLookupError):  # it had come to its own end
            os.kill(pid, signal.SIGSTOP)  # so that nothing ends between the look and the kill
            if answers(installation, pid):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return True
            os.kill(pid, signal.SIGCONT)
    return False


def answers(installation: Installation, pid: int) -> bool:
    found = rows(installation.database, "SELECT worker FROM live_turns")
    return any(f".{pid}." in worker for (worker,) in found)


def terms(
    serve: Callable[[], AbstractContextManager[Installation]], count: int, grace: float, sessions: int = 16
) -> Found:
    """The server is stopped and started again and again, also in the middle of answers that take longer than
    a stopping server waits.
    """
    found, talks, took = Found(), list[Talk](), list[float]()
    with ExitStack() as stack:
        for number in range(count + 1):
            with serve() as installation:
                if not talks:
                    talks += talkers(installation, sessions // 4, longest=int(2.5 * grace / SECONDS_PER_WORD))
                    talks += talkers(installation, sessions - len(talks))
                    crew = stack.enter_context(talking(talks))
                if number == count:
                    crew.hear_out()
                    wait_until_quiet(found, installation.database)
                    examine(found, installation, talks)
                    break
                wait_for_messages(talks, sessions)
                time.sleep(random.uniform(0, 1))  # the moment is what is random
                took.append(stop(installation, grace, found))
    found.note_times(f"from SIGTERM to the end, {grace:g} s allowed", took)
    return found


def stop(installation: Installation, grace: float, found: Found) -> float:
    """Ask the server to stop: the seconds it took."""
    began = time.monotonic()
    code = installation.running.stop()
    took = time.monotonic() - began
    found.claim(code == 0, f"exit code {code}: {installation.running.output()[-2000:]}")
    found.claim_in_time("stopping", took, grace + 1)
    left = leftovers(installation.database)
    found.claim(not left, f"stopped, and left behind {left}")
    examine_log(found, installation)
    return took


def replacements(installation: Installation, hups: int, recycled: int, sessions: int = 16) -> Found:
    """Workers are replaced, on SIGHUP or because they had so many requests, and nobody notices."""
    found, talks, seen = Found(), talkers(installation, sessions), set(installation.running.children())
    before = turns_counted(installation)
    with talking(talks) as crew:
        for _ in range(hups):
            time.sleep(random.uniform(0, 1))  # the moment is what is random
            replace_workers(installation.running)
        enough = len(seen | set(installation.running.children())) + recycled
        while len(seen) < enough:
            seen |= set(installation.running.children())
            time.sleep(POLL_SECONDS)
        crew.hear_out()
    wait_until_quiet(found, installation.database)
    examine(found, installation, talks)
    examine_counts(found, installation, talks, before)
    for talk in talks:
        found.claim(not talk.trouble, f"somebody met with {dict(talk.trouble)}")
        odd = [(sent.words.mark, sent.status) for sent in talk.sent if sent.status != "completed"]
        found.claim(not odd, f"not completed: {odd}")
    return found


def replace_workers(running: Server) -> None:
    """Of those before, some may still be at their last answers."""
    before = set(running.children())
    os.kill(running.pid, signal.SIGHUP)
    wait_for(lambda: len(set(alive(running)) - before) == 2)


def talkers(installation: Installation, sessions: int, **how: Any) -> list[Talk]:
    """They now and then leave in the middle and come back."""
    return [Talk(seat, installation.words, leaving=0.2, **how) for seat in installation.seats(sessions)]


def wait_for_messages(talks: Sequence[Talk], count: int) -> None:
    """Until so many more were sent."""
    enough = count + sum(len(talk.sent) for talk in talks)
    wait_for(lambda: sum(len(talk.sent) for talk in talks) >= enough)


def alive(running: Server) -> list[int]:
    """The workers that are not dead: of those who are, the master may not have noticed."""
    found = []
    for pid in running.children():
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found
