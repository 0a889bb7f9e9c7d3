"""Run the server by hand."""

from __future__ import annotations

import argparse
import threading
from contextlib import suppress

from tests.support.messages_api.server import MessagesApi


def main() -> None:
    parser = argparse.ArgumentParser(description="A local server that speaks the Messages API.")
    parser.add_argument("--port", type=int, default=8081)
    with MessagesApi(parser.parse_args().port) as api:
        print(f"Messages API on {api.url}; Ctrl-C ends it.", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
