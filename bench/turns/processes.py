"""What the processes of a server have used, as the kernel counts it. Linux only.

The processes of a server are all that are in its process group, so whatever it starts is counted too.
"""

from __future__ import annotations

import os
import re
import resource
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TICKS = os.sysconf("SC_CLK_TCK")


def allow_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def of_group(group: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):  # it may end while it is looked at
                if os.getpgid(int(entry)) == group:
                    found.append(int(entry))
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """The process and all that came of it, for a server that puts each of its processes into a group."""
    found, unseen = [], [pid]
    while unseen:
        found.append(unseen.pop())
        with suppress(OSError):
            unseen += map(int, Path(f"/proc/{found[-1]}/task/{found[-1]}/children").read_text().split())
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of these processes, and of their children that have ended."""
    return sum(map(_cpu_ticks, pids)) / TICKS


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))


def machine_cpu_seconds() -> float:
    """Of all processes on this machine together."""
    fields = Path("/proc/stat").read_text().split(maxsplit=9)
    user, nice, system, _, _, interrupts, soft_interrupts = map(int, fields[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / TICKS


def peak_rss(pids: list[int]) -> float:
    """In MiB: the most that each has had, added up."""
    return sum(_kilobytes(pid, "status", "VmHWM") for pid in pids) / 1024


def rss(pids: list[int]) -> float:
    return sum(_kilobytes(pid, "status", "VmRSS") for pid in pids) / 1024


def pss(pids: list[int]) -> float:
    """In MiB; what several of them share is divided among them."""
    return sum(_kilobytes(pid, "smaps_rollup", "Pss") for pid in pids) / 1024


def _kilobytes(pid: int, file: str, name: str) -> int:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
