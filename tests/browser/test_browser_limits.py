"""The limits with a real browser at the real server: what counts down, what comes back, what is kept."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from types import MappingProxyType

import pytest

from tests.support.browser import Page, needs_chromium, new_chat, send, sign_in
from tests.support.server import Server, server
from tests.support.server_users import add_people

pytestmark = needs_chromium

Opened = Callable[..., Page]
PAUSED = "This chat is paused: 3 errors in a row. Your other chats work."
PROBE = "This chat was paused. Trying once more: your next message is the one try."


# What the tests need of a server. Each begins with a new account and a new chat.
LIMITS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "long pauses": {
            "AGENTAPP_BREAKER_COOLDOWN": "60",
            "AGENTAPP_BUDGET_SESSION_TOKENS": "1000",
            "AGENTAPP_TOOL_CALLS_TURN": "1",
        },
        "short pauses": {"AGENTAPP_BREAKER_COOLDOWN": "5"},
        "two messages in four seconds": {"AGENTAPP_RATE_SESSION": "2/4seconds"},
    }
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    with ExitStack() as stack:

        @cache
        def make(limits: str) -> Server:
            directory = tmp_path_factory.mktemp("server")
            env = {"AGENTAPP_DEMO_DELAY": "0", **LIMITS[limits]}
            return stack.enter_context(server(directory, workers=2, env=env))

        yield make


@pytest.fixture
def opened(browsers: Callable[[bool], Page], servers: Callable[[str], Server]) -> Opened:
    """A page with a new chat of a new account on the server with these limits."""

    def make(limits: str, *, script: bool = True) -> Page:
        running = servers(limits)
        page = browsers(script).anew(running.url)
        name = f"user-{secrets.token_hex(4)}"
        add_people(f"sqlite:///{running.log.parent}/instance/agentapp.sqlite3", [name], tenant="default")
        sign_in(page, name)
        new_chat(page)
        page.console()  # what others have left there
        return page

    return make


def sent(page: Page, words: str, status: str = "completed") -> None:
    """Send, and see the turn through to its end."""
    before = len(page.all("#turns > .turn"))
    send(page, words)
    page.until(lambda: len(page.all("#turns > .turn")) == before + 1 and page.status_of_last() == status)


def fail(page: Page) -> None:
    for _ in range(3):
        sent(page, "/fail", "failed")


def notice(page: Page) -> str:
    return " ".join(page.find("#limit").text.split())


def box(page: Page) -> str:
    return page.find("#message").get_attribute("value") or ""


def status(page: Page) -> int:
    """Of the answer that the page came in."""
    found: int = page.driver.execute_script(
        "return performance.getEntriesByType('navigation')[0].responseStatus"
    )
    return found


def test_a_pause_counts_down_and_ends_by_itself_and_the_next_message_works(opened: Opened) -> None:
    page = opened("short pauses")
    fail(page)
    page.until(lambda: PAUSED in notice(page))
    chat = page.driver.current_url
    page.driver.execute_script(
        """window.changed = [];
        new MutationObserver((records) => records.forEach(({ target }) => {
            const at = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
            window.changed.push(at?.closest('[role=timer]') ? 'timer' : at?.id);
        })).observe(document.getElementById('limit'), {subtree: true, childList: true, characterData: true});
        """
    )
    page.find("#message").send_keys("written while it waits")
    seen: list[str] = []

    def counted() -> bool:
        digits = page.all("#limit .clock")
        if digits and digits[0].text not in seen[-1:]:
            seen.append(digits[0].text)
        return PROBE in notice(page)

    page.until(counted)
    assert len(seen) >= 2, "the clock stood still"
    assert seen == sorted(seen, reverse=True)
    assert all(len(digits) == 4 and digits.startswith("0:0") for digits in seen)
    changed = page.driver.execute_script("return window.changed")
    assert set(changed) == {"timer", "limit"}
    # What speaks changed once, when the wait was over; the clock in it is silent.
    assert changed.count("limit") == 1
    assert box(page) == "written while it waits"
    assert page.driver.current_url == chat, "the page was loaded anew"

    page.find("#send").click()
    page.until(lambda: "written while it waits" in page.last_reply() and page.status_of_last() == "completed")
    page.until(lambda: notice(page) == "")
    assert not page.console()


def test_a_refused_message_goes_back_into_the_box_and_leaves_no_trace(opened: Opened) -> None:
    page = opened("long pauses")
    fail(page)
    page.until(lambda: PAUSED in notice(page))
    send(page, "not to be lost")
    page.until(lambda: f"Not sent. {PAUSED} Try again in 0:" in notice(page))
    assert box(page) == "not to be lost"
    assert len(page.all("#turns > .turn")) == 3
    assert page.find("#message").is_enabled()
    assert page.find("#send").is_enabled()
    assert page.find("#log").get_attribute("aria-busy") == "false"
    assert not page.all("#notices > *"), "said twice"
    page.driver.refresh()
    page.until(lambda: PAUSED in notice(page))
    assert box(page) == "not to be lost"
    assert len(page.all("#turns > .turn")) == 3, "what was refused looks like a turn that failed"
    page.find("#limit form button").click()
    page.sees("What can I help with?")
    assert notice(page) == ""
    sent(page, "another chat works")


def test_a_chat_that_writes_too_fast_is_told_for_how_long_and_goes_on_by_itself(opened: Opened) -> None:
    page = opened("two messages in four seconds")
    sent(page, "one")
    sent(page, "two")
    send(page, "three")
    page.until(lambda: "That is too fast: at most 2 messages in this chat in 4 seconds." in notice(page))
    page.until(lambda: notice(page) == "")
    page.until(lambda: page.find("#status").get_attribute("textContent") == "You can send again.")
    if not box(page):  # the pause was over before it was sent
        return
    page.find("#send").click()
    page.until(lambda: "three" in page.last_reply() and page.status_of_last() == "completed")


def test_the_meter_moves_and_warns_and_says_when_it_is_used_up(opened: Opened) -> None:
    page = opened("long pauses")
    assert page.find("#meters").text == ""
    seen: list[str] = []
    for _ in range(20):
        sent(page, "hello")
        page.until(lambda: page.find("#meters").text not in ("", *seen[-1:]))
        seen.append(page.find("#meters").text)
        if "Used up" in seen[-1]:
            break
    assert seen[0].endswith("of 1,000 tokens in this chat")
    assert seen[0][0].isdigit(), "a warning too early"
    assert any(words.startswith(("Running low: ", "Almost used up: ")) for words in seen), seen
    page.until(lambda: "This chat has used all of its 1,000 tokens." in notice(page))
    assert "An operator can raise the limit. Start a new chat" in notice(page)
    assert not page.all("#limit [data-seconds]")
    assert page.find("#message").is_enabled()
    page.driver.refresh()
    page.until(lambda: page.find("#meters").text == seen[-1])
    assert not page.console()


def test_nothing_breaks_if_the_limits_cannot_be_had(opened: Opened) -> None:
    page = opened("short pauses")
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/limits"]})
    fail(page)
    assert notice(page) == ""
    send(page, "is this told?")
    page.sees("Paused")
    page.until(lambda: box(page) == "is this told?")
    page.sees(PAUSED)
    page.driver.refresh()
    page.until(lambda: not page.all("#limit .clock"))
    assert notice(page) in (PROBE, f"{PAUSED} Try again now. New chat")
    page.find("#send").click()
    page.until(lambda: "is this told?" in page.last_reply() and page.status_of_last() == "completed")
    assert notice(page) == "", "a message that was let in proves the pause to be over"
    page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def test_a_tool_that_had_all_its_calls_says_so_while_it_happens_and_later(opened: Opened) -> None:
    page = opened("long pauses")
    sent(page, "/loop", "failed")

    def states() -> list[str]:
        return [state.get_attribute("textContent") or "" for state in page.all("#turns .state")]

    assert states()[:2] == ["done", "limit reached"]
    live = states()
    page.driver.refresh()
    page.until(lambda: states() == live)


def test_without_script_a_pause_is_told_and_nothing_is_lost(opened: Opened) -> None:
    page = opened("short pauses", script=False)
    fail(page)
    assert f"{PAUSED} Try again in 0:0" in notice(page)
    send(page, "not to be lost")
    page.until(lambda: "Not sent." in notice(page))
    assert status(page) == 503
    assert box(page) == "not to be lost"
    assert len(page.all("#turns > .turn")) == 3
    assert not page.all("meta[http-equiv]")
    time.sleep(float(page.find("#limit [data-seconds]").get_attribute("data-seconds") or 0))
    page.find("#send").click()
    page.until(lambda: page.status_of_last() == "completed")
    assert "not to be lost" in page.last_reply()
    assert notice(page) == ""


def test_without_script_a_chat_without_tokens_offers_a_new_one(opened: Opened) -> None:
    page = opened("long pauses", script=False)
    sent(page, "/long 300")
    sent(page, "/long 300")
    assert "This chat has used all of its 1,000 tokens." in notice(page)
    send(page, "not to be lost")
    page.until(lambda: "Not sent." in notice(page))
    assert box(page) == "not to be lost"
    assert status(page) == 429
    page.find("#limit form button").click()
    page.sees("What can I help with?")
    assert notice(page) == ""
