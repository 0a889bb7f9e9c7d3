"""Whether a call of Redis is ever given another call's answer.

    python -m bench.redis_calls [--calls 100000]

Eight threads call a real Redis through a proxy that holds some answers back until about when a call gives up,
while exceptions are thrown into the threads wherever they are. Every answer must carry its own caller's mark.
Exits with 1 if one does not.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.support.redis_calls import call_often
from tests.support.redis_server import redis_server


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=100_000)
    count = parser.parse_args().calls
    began = time.monotonic()
    with redis_server() as server:
        found = call_often(server, count)
    print(f"{found.calls:,} calls in {time.monotonic() - began:.0f} s: {dict(found.outcomes)}")
    print(f"answers of others: {len(found.foreign)}")
    for each in found.foreign[:10]:
        print(f"  {each}")
    sys.exit(1 if found.foreign else 0)


if __name__ == "__main__":
    main()
