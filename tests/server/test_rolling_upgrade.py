"""Two releases on one database, as it is while several hosts are upgraded, one after the other.

The code of the release before is taken from git. Its workers go on after this release has migrated the
database, and workers of both play, follow, stop and clear up each other's turns.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agentapp.storage import schema
from tests.support import previous_release
from tests.support.databases import DATABASES
from tests.support.forked_agentapp import ForkedAgentapp
from tests.support.http_client import Stream
from tests.support.messages_api import MessagesApi
from tests.support.postgres import postgres_url
from tests.support.retrying_users import (
    LIMITS_NOBODY_REACHES,
    CountingModel,
    Found,
    Installation,
    Talk,
    examine,
    exported,
    resume,
    send,
    talking,
    wait_until_quiet,
    words,
)
from tests.support.server import Server, clean_env
from tests.support.server_users import Seat, add_people, rows, seats, served, wait_for

WORD_SECONDS = 0.03
TALKERS = ("tess", "theo", "tina", "toni")


@dataclass(frozen=True)
class Hosts:
    """One of the release before, on a database that this release has migrated since, and one of this release.
    ``serve`` starts another one of this. They share the secret, and the directory.
    """

    url: str
    old: Server
    new: Server
    serve: Callable[[], Server]
    upgraded: Found

    def seat(self, who: str = "ann") -> Seat:
        """In a new chat, at the old host."""
        (found,) = seats(self.old.url, [who])
        return found


@pytest.fixture(scope="module", params=DATABASES)
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    directory = tmp_path_factory.mktemp("hosts")
    release = previous_release.unpack_previous_release(tmp_path_factory.mktemp("release"))
    with ExitStack() as ends:
        url = f"sqlite:///{directory}/test.sqlite3"
        if request.param == "postgresql":
            url = ends.enter_context(postgres_url())

        def serve(release: Path | None = None) -> Server:
            limits: dict[str, Any] = {**LIMITS_NOBODY_REACHES, "demo_delay": WORD_SECONDS}
            return ends.enter_context(served(directory, url, threads=16, release=release, **limits))

        old = serve(release)
        made = rows(url, "SELECT version_num FROM alembic_version")
        assert made == [(previous_release.HEAD,)], "it was not the release before that made it"
        add_people(url, ["ann", *TALKERS])
        upgraded = _upgraded_under_load(ends, old, url, directory)
        yield Hosts(url, old, serve(), serve, upgraded)


def _upgraded_under_load(ends: ExitStack, old: Server, url: str, directory: Path) -> Found:
    """`agentapp db upgrade` of this release, while people talk with the workers of the one before."""
    found, model = Found(), CountingModel()
    api = ends.enter_context(MessagesApi(responder=model))
    running = Installation(url, old, api, model, is_demo=True, word_seconds=WORD_SECONDS)
    talks = [Talk(seat, running.words, longest=8, leaving=0.2) for seat in seats(old.url, TALKERS)]
    with talking(talks):
        wait_for(lambda: all(len(talk.sent) >= 2 for talk in talks))
        log = directory / "upgrade"
        env = clean_env(AGENTAPP_DATABASE_URL=url)
        upgrade = ForkedAgentapp("db", "upgrade", directory=directory, log=log, env=env)
        assert upgrade.wait(60) == 0, log.read_text()
        assert log.read_text() == f"the database is at revision {schema.HEAD}\n"
        before = [len(talk.sent) for talk in talks]
        wait_for(lambda: all(len(talk.sent) >= n + 3 for n, talk in zip(before, talks, strict=True)))
    wait_until_quiet(found, url)
    examine(found, running, talks)
    for talk in talks:
        found.claim(not talk.trouble, f"somebody met with {talk.trouble}")
        ends_of_turns = {sent.status for sent in talk.sent}
        found.claim(ends_of_turns == {"completed"}, f"turns ended as {ends_of_turns}")
    return found


def at(server: Server, seat: Seat) -> Seat:
    """The same person, signed in by the same cookie, in the same chat."""
    return replace(seat, visitor=replace(seat.visitor, url=server.url, cookies=dict(seat.visitor.cookies)))


def begin(seat: Seat) -> tuple[Stream, str]:
    """A turn that takes long, of which a part was heard."""
    stream = send(seat, words(400)).upto(6)
    assert stream.turn_id is not None, (stream.status, stream.body)
    return stream, stream.turn_id


def stop(seat: Seat, turn_id: str) -> None:
    answer = seat.visitor.post(f"/chat/{seat.chat}/turns/{turn_id}/stop", "application/json")
    assert answer.status in (200, 202), answer.text


def kill(server: Server) -> None:
    """The whole host at once."""
    os.killpg(server.pid, signal.SIGKILL)
    server.process.wait()


def test_nobody_who_talks_to_the_old_workers_notices_the_migration(hosts: Hosts) -> None:
    assert hosts.upgraded.wrong == []


def test_old_workers_go_on_with_everything_that_people_do(hosts: Hosts) -> None:
    seat = hosts.seat()  # signs in, and makes a chat
    visitor, chat = seat.visitor, f"/chat/{seat.chat}"
    assert json.loads(seat.send("a plain message").body)["status"] == "completed"
    assert (send(seat, words()).rest().end or {})["status"] == "completed"
    stream, turn = begin(seat)
    stop(seat, turn)
    assert (stream.rest().end or {})["status"] == "stopped"
    retried = Stream(visitor, f"{chat}/turns/{turn}/retry", {"idempotency_key": "once-more"}).upto(6)
    stop(seat, str(retried.turn_id))
    assert (retried.rest().end or {})["status"] == "stopped"
    assert seat.statuses() == ["completed", "completed", "stopped", "stopped"]
    assert seat.chat in visitor.get("/chat?q=plain").text
    for page in ("/chat", chat, f"{chat}/limits", f"{chat}/export.md", "/account"):
        assert visitor.get(page).status == 200, page
    assert visitor.post(f"{chat}/rename", title="renamed").status == 303
    assert visitor.post(f"{chat}/pin", pinned="1").status == 303
    assert visitor.post(f"{chat}/delete").status == 303
    assert visitor.get(chat).status == 404


def test_each_follows_and_stops_the_turns_of_the_other(hosts: Hosts) -> None:
    here = hosts.seat()
    there = at(hosts.new, here)
    for player, other in ((here, there), (there, here)):
        stream, turn = begin(player)
        followed = resume(other, turn, 0).upto(6)
        assert [event.data for event in followed.events[:6]] == [event.data for event in stream.events[:6]]
        stop(other, turn)
        told, heard = stream.rest().end, followed.rest().end
        assert told == heard
        assert (told or {})["status"] == "stopped"
        assert followed.text == stream.text
    assert exported(here.visitor, here.chat) == exported(there.visitor, there.chat)
    found = Found()
    wait_until_quiet(found, hosts.url)
    assert found.wrong == []


def test_each_ends_the_turns_of_a_host_of_the_other_that_died_and_gives_back_what_they_reserved(
    hosts: Hosts,
) -> None:
    """The last test, because neither host is left after it."""
    here = hosts.seat()
    for dying, living in ((hosts.new, hosts.old), (hosts.old, None)):
        survivor = living or hosts.serve()
        stream, turn = begin(at(dying, here))
        stream.leave()
        kill(dying)
        told = resume(at(survivor, here), turn, 0).rest().end
        assert (told or {})["status"] == "interrupted"
        found = Found()
        wait_until_quiet(found, hosts.url)
        assert found.wrong == []
        assert json.loads(at(survivor, here).send("and on").body)["status"] == "completed"
