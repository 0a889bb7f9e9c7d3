"""The log of the real server, when its operator asks for as much of it as there is."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.support.databases import migrated_in
from tests.support.http_client import Visitor
from tests.support.messages_api import MessagesApi
from tests.support.server import SCRIPTS, server
from tests.support.server_users import OFF, add_people
from tests.support.users import PASSWORD

MARK = "the-private-words-of-ann"


def test_the_most_talkative_log_has_no_words_of_a_user(tmp_path: Path, sqlite_template: Path) -> None:
    with migrated_in(tmp_path, "sqlite", sqlite_template) as url, MessagesApi() as model:
        add_people(url, ["ann"])
        environ = OFF | {
            "AGENTAPP_DATABASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-test-key",
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_LOG": "debug",
            "AGENTAPP_LOG_LEVEL": "debug",
            "GUNICORN_CMD_ARGS": "--log-level debug --access-logfile -",
        }
        # A process of its own, because the SDK reads its variable when it is imported.
        with server(tmp_path, env=environ, command=[SCRIPTS / "agentapp", "serve"]) as running:
            ann = Visitor(running.url)
            ann.sign_in("ann", PASSWORD)
            chat = ann.new_chat()
            assert ann.send(chat, f"hello {MARK}").status == 200
            assert ann.get(f"/chat?q={MARK}").status == 200
            ann.get(f"/setup?token={MARK}")
            with socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2]))) as odd:
                odd.sendall(f"GET /{MARK} {MARK}\r\n\r\n".encode())
                assert odd.recv(1000).startswith(b"HTTP/1.1 400 ")
        log = running.output()
    ours = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    of_requests = [
        (line["method"], line["route"], line["status"]) for line in ours if line["event"] == "request"
    ]
    assert ("POST", "/chat/<session_id>/messages", 200) in of_requests
    assert ("GET", "/livez", 200) in of_requests
    assert ("-", "-", 400) in of_requests
    assert [line["turn_status"] for line in ours if line["event"] == "turn ended"] == ["completed"]
    assert "gunicorn.error" in {line["logger"] for line in ours}
    assert {line["logger"].partition(".")[0] for line in ours} <= {"agentapp", "gunicorn"}
    assert f"POST /chat/{chat}" in log
    assert '"GET /chat HTTP/1.1" 200' in log
    assert MARK not in log
    assert "sk-test-key" not in log
