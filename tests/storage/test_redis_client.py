"""The client of Redis: whose answers come, what it does while Redis is away, what is shared over a fork."""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentapp.errors import RedisAway, SettingError
from agentapp.storage import redis_choice
from agentapp.storage.redis_check import problem_said
from agentapp.storage.redis_client import Redis, Script
from agentapp.storage.redis_connection import IDLE_SECONDS, Pool, dialer
from tests.support.redis_calls import Cancelled, call_often
from tests.support.redis_server import RedisServer, fresh_prefix, redis_server, shared_server, shared_url
from tests.support.rounds import ROUNDS
from tests.support.server_users import wait_for

SLOW = "local now = redis.call('TIME') local ends = now[1] * 1000000 + now[2] + ARGV[1] * 1000 " + (
    "repeat now = redis.call('TIME') until now[1] * 1000000 + now[2] > ends return 'slow'"
)
OTHER_NAME = "rediss://127.0.0.2:{}/0?ssl_ca_certs={}"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as found:
        yield found


@pytest.fixture
def redis() -> Iterator[Redis]:
    found = Redis(shared_url(), fresh_prefix())
    yield found
    found.close()


@pytest.fixture
def breakable(server: RedisServer) -> Iterator[Redis]:
    """On a server that the test may stop."""
    found = Redis(server.url, fresh_prefix(), call_seconds=0.2)
    yield found
    found.close()


def is_back(redis: Redis) -> None:
    wait_for(lambda: not redis.is_away)


# In the middle of a destructor an exception from outside can only be reported.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_call_is_given_the_answer_of_another() -> None:
    found = call_often(shared_server(), 4_000 * ROUNDS)
    assert found.foreign == []
    assert found.outcomes["late"] > 0
    assert found.outcomes["cancelled"] > 0
    assert sum(found.outcomes.values()) > 3_500 * ROUNDS


def test_a_call_that_is_interrupted_before_its_answer_leaves_nothing_to_the_next(redis: Redis) -> None:
    pool = redis._here().pool
    redis.call("PING")
    while len(pool._idle) != 1:  # the thread that looks once a second has had one just then
        pool.clear()
        redis.call("PING")
    (connection,) = pool._idle
    answer = connection._connection.read_response

    def interrupted() -> object:
        raise Cancelled

    connection._connection.read_response = interrupted
    with pytest.raises(Cancelled):
        redis.run(Script(SLOW), [], 30)
    connection._connection.read_response = answer
    assert [redis.call("ECHO", f"{number}") for number in range(3)] == [b"0", b"1", b"2"]
    assert connection not in pool._idle


def test_errors_among_several_answers_are_raised_after_all_were_read(redis: Redis) -> None:
    key = redis.key("list")
    with pytest.raises(RedisAway, match="WRONGTYPE"):
        redis.call_all([("RPUSH", key, "a"), ("INCR", key), ("RPUSH", key, "b")])
    assert redis.call("LRANGE", key, 0, -1) == [b"a", b"b"]
    assert not redis.is_away, "it was one command's own fault"
    with pytest.raises(TypeError):
        redis.call("SET", key, {"no": "text"})  # type: ignore[arg-type]
    assert redis.call("LLEN", key) == 2


def test_a_script_is_run_also_when_redis_has_forgotten_it(redis: Redis) -> None:
    script = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert redis.run(script, [redis.key("n")], 2) == 2
    redis.call("SCRIPT", "FLUSH")
    assert redis.run(script, [redis.key("n")], 3) == 5


def test_a_command_that_blocks_is_waited_for(redis: Redis) -> None:
    stream = redis.key("stream")
    assert redis.call("XREAD", "BLOCK", 700, "STREAMS", stream, "$", wait=0.7) is None
    assert not redis.is_away


def test_no_two_lists_of_parts_have_the_same_key(redis: Redis) -> None:
    parts = [
        ("a", "b"),
        ("a:b",),
        ("a%3Ab",),
        ("a", "", "b"),
        ("a", ":b"),
        ("a:", "b"),
        ("a%", "b"),
        ("a%25", "b"),
    ]
    assert len({redis.key(*each) for each in parts}) == len(parts)


@pytest.mark.parametrize("trouble", ["frozen", "stopped"])
def test_one_call_finds_out_that_redis_is_away_and_all_others_fail_at_once(
    server: RedisServer, breakable: Redis, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    redis = breakable
    redis.call("SET", redis.key("a"), 1)
    with getattr(server, trouble)():
        with pytest.raises(RedisAway):
            redis.call("GET", redis.key("a"))
        assert redis.is_away
        began = time.process_time(), time.monotonic()
        for _ in range(1000):
            with pytest.raises(RedisAway):
                redis.call("GET", redis.key("a"))
        assert time.monotonic() - began[1] < 10, "a thousand time-outs would be minutes"
        assert redis.why_away
    is_back(redis)
    redis.call("GET", redis.key("a"))
    assert caplog.text.count("Redis is away") == 1, "one line for each outage"


def test_what_hangs_is_noticed_although_nobody_calls(server: RedisServer, breakable: Redis) -> None:
    redis = breakable
    assert redis.is_away, "not tried yet"
    redis.start()
    is_back(redis)
    with server.frozen():
        wait_for(lambda: redis.is_away)
    is_back(redis)


def test_a_restart_costs_at_most_one_call(server: RedisServer, breakable: Redis) -> None:
    """The connections that were open are not tried again one after the other."""
    redis = breakable
    meet = threading.Barrier(4)

    def call() -> None:
        meet.wait()
        redis.call("ECHO", "x")

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    server.restart()
    is_back(redis)
    for _ in range(10):
        redis.call("ECHO", "x")


def test_a_connection_that_was_idle_too_long_is_not_used(redis: Redis) -> None:
    redis.call("PING")
    (connection,) = redis._here().pool._idle
    connection.used_at -= IDLE_SECONDS + 1
    redis.call("PING")
    assert connection not in redis._here().pool._idle


def test_connections_are_bounded_and_those_who_wait_get_one() -> None:
    pool = Pool(dialer(shared_url()), 2)
    taken = [pool.take(), pool.take()]
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.extend(pool.exchange([("ECHO", "x")])))
    thread.start()
    assert len(pool) == 2
    pool.give_back(taken.pop())
    thread.join()
    assert answers == [b"x"]
    busy = pool.take()
    with pytest.raises(TimeoutError, match="all 2 connections"):
        pool.take()
    pool.drop(busy)
    pool.drop(taken.pop())
    del busy
    assert pool.exchange([("ECHO", "y")]) == [b"y"], "one that was closed makes room"
    pool.clear()


def _in_child(redis: Redis, answers: multiprocessing.SimpleQueue[list[bytes]]) -> None:
    try:
        answers.put([redis.call("ECHO", f"child {number}") for number in range(200)])
    except BaseException as error:
        answers.put([repr(error).encode()])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # that is what is tried
def test_nothing_is_shared_over_a_fork(redis: Redis) -> None:
    redis.call("PING")
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    held = redis._here()
    with held._trying:  # as if the watcher was just looking
        child = fork.Process(target=_in_child, args=(redis, answers))
        child.start()
    own = [redis.call("ECHO", f"own {number}") for number in range(200)]
    assert answers.get() == [b"child %d" % number for number in range(200)]
    child.join()
    assert child.exitcode == 0
    assert own == [b"own %d" % number for number in range(200)]
    assert redis._here() is held


def test_one_that_nobody_uses_any_more_leaves_no_thread() -> None:
    redis = Redis(shared_url(), fresh_prefix())
    redis.call("PING")
    watcher = redis._here()._watcher
    assert watcher is not None
    del redis
    watcher.join(10)
    assert not watcher.is_alive()


def test_a_closed_one_stays_closed(redis: Redis) -> None:
    redis.call("PING")
    redis.close()
    with pytest.raises(RedisAway, match="closed"):
        redis.call("PING")


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        (b"redis_version:5.0.7\r\nredis_mode:standalone\r\n", "version 5.0.7"),
        (b"", "version unknown"),
        (b"redis_version:7.4.1\r\nredis_mode:cluster\r\n", "cluster"),
        (b"redis_version:6.2.12\r\nredis_mode:standalone\r\n", None),
        (b"redis_version:7.2.4\r\nvalkey_version:8.0.1\r\nredis_mode:standalone\r\n", None),
    ],
)
def test_what_is_too_old_or_a_cluster_is_not_used(info: bytes, problem: str | None) -> None:
    said = problem_said(info)
    assert (said is None) == (problem is None)
    assert problem is None or problem in str(said)


def refusals(server: RedisServer, *rules: str) -> tuple[Redis, Callable[[], str]]:
    server.command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~agentapp:*", *rules)
    redis = Redis(f"redis://app:secret@127.0.0.1:{server.port}/0")
    return redis, lambda: str(redis.why_away)


def test_what_our_user_may_not_do_is_told_once_and_clearly(server: RedisServer) -> None:
    redis, why = refusals(server, "+@all", "-xadd", "-@dangerous", "+info")
    with pytest.raises(RedisAway, match="XADD is refused"):
        redis.call("PING")
    assert "XADD is refused" in why()
    server.command("ACL", "SETUSER", "app", "+xadd")
    is_back(redis)
    redis.close()
    redis = Redis(f"redis://app:wrong@127.0.0.1:{server.port}/0")
    with pytest.raises(RedisAway) as raised:
        redis.call("PING")
    assert "wrong" not in str(raised.value).replace("WRONGPASS", "").replace("wrong number", "")
    redis.close()


def test_one_that_is_full_or_read_only_is_away_until_it_is_not(server: RedisServer, breakable: Redis) -> None:
    redis = breakable
    redis.call("SET", redis.key("a"), 1)
    server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(RedisAway, match="refused"):
        redis.call("SET", redis.key("b"), 1)
    assert redis.is_away
    server.command("CONFIG", "SET", "maxmemory", "0")
    is_back(redis)
    server.command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(RedisAway):
        redis.call("SET", redis.key("b"), 1)
    assert redis.is_away
    server.command("REPLICAOF", "NO", "ONE")
    is_back(redis)


def test_a_certificate_of_somebody_else_is_refused() -> None:
    """One that nobody trusts, and one of another name, at which redis-py before 6.0 would not look."""
    pem = Path(__file__).parent.parent / "support" / "localhost.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                accepted, _address = listener.accept()
                with suppress(OSError), context.wrap_socket(accepted, server_side=True):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        urls = {f"rediss://localhost:{port}/0": "self.signed", OTHER_NAME.format(port, pem): "not valid for"}
        for url, why in urls.items():
            with pytest.raises(Exception, match=why):
                Pool(dialer(url), 1).exchange([("PING",)])
        thread.join()


def test_without_the_extra_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "redis" or name.startswith("redis.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("agentapp.storage.redis_c")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(
        SettingError, match=r"AGENTAPP_REDIS_URL: needs redis: install agentapp with its extra redis"
    ):
        redis_choice.find_redis("redis://h", "k" * 32)
    assert redis_choice.find_redis(None, "k" * 32) is None


def test_without_a_url_nothing_of_redis_is_imported() -> None:
    code = "import sys, agentapp.app; print([name for name in sys.modules if name.split('.')[0] == 'redis'])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_installations_that_share_a_redis_have_keys_of_their_own() -> None:
    ours, theirs = redis_choice.prefix_for("a" * 32), redis_choice.prefix_for("b" * 32)
    assert ours != theirs
    assert ours == redis_choice.prefix_for("a" * 32), "on every host"
    assert ours.startswith("agentapp:"), "so that one rule of an ACL can name them all"
    assert "a" * 32 not in ours
