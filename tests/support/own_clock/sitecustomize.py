"""Python imports this first in a process whose wall clock libfaketime has put ahead or back.

Where that leaves the clocks that only count as they are, it refuses the system call by which Python sleeps
until one of them has come so far. To wait for no file takes another call.
"""

import select
import time

time.sleep = lambda seconds: select.select((), (), (), seconds)  # type: ignore[assignment]
