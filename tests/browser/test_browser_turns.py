"""Turns that go on by themselves, with a real browser: followed, resumed, stopped, sent once more."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from agentapp.isolation import ThreadBinder
from agentapp.storage.db import Database
from tests.support.browser import PASSWORD, Page, needs_chromium, new_chat, send, set_up, sign_in
from tests.support.http_client import Stream, Visitor
from tests.support.long_chats import add_turns, scope_of, straight
from tests.support.server import Server, server

pytestmark = needs_chromium


class Cable:
    """What the browser is connected through. It can be cut, and what the server says can be held back."""

    def __init__(self, url: str) -> None:
        self._target = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._whole, self._flowing = threading.Event(), threading.Event()
        self._open: set[socket.socket] = set()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self.mend()
        self.let_go()
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._whole.set()

    def hold(self) -> None:
        self._flowing.clear()

    def let_go(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        self._door.close()
        self.let_go()
        self.cut()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                browser, _ = self._door.accept()
                if not self._whole.is_set():
                    browser.close()
                    continue
                server = socket.create_connection(self._target)
                self._open |= {browser, server}
                threading.Thread(target=self._carry, args=(browser, server), daemon=True).start()
                threading.Thread(target=self._carry, args=(server, browser, True), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, held: bool = False) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if held:
                    self._flowing.wait()
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open -= {one}
        one.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {
        "AGENTAPP_DEMO_DELAY": "0.03",
        "AGENTAPP_RATE_SESSION": "off",
        "AGENTAPP_RATE_USER": "off",
        "AGENTAPP_CONCURRENT_USER": "off",
        "AGENTAPP_STREAMS_USER": "6",
    }
    with server(tmp_path_factory.mktemp("server"), workers=2, threads=32, env=settings) as made:
        yield made


@pytest.fixture(scope="module")
def cable(running: Server) -> Iterator[Cable]:
    made = Cable(running.url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def signed_in(running: Server, cable: Cable, browsers: Callable[[bool], Page]) -> Page:
    page = browsers(True).anew(cable.url)
    set_up(page, running)
    return page


@pytest.fixture
def page(signed_in: Page) -> Iterator[Page]:
    """A new chat."""
    page = signed_in
    page.open("/chat")
    new_chat(page)
    page.console()  # what others have left there
    yield page
    first, *others = page.driver.window_handles
    for other in others:
        page.driver.switch_to.window(other)
        page.driver.close()
    page.driver.switch_to.window(first)


@pytest.fixture(scope="module")
def plain_browser(signed_in: Page, running: Server, browsers: Callable[[bool], Page]) -> Page:
    page = browsers(False).anew(running.url)
    sign_in(page)
    return page


@pytest.fixture
def plain(plain_browser: Page) -> Page:
    """The same without script."""
    plain_browser.open("/chat")
    new_chat(plain_browser)
    return plain_browser


def chat_of(page: Page) -> str:
    return page.find("main.chat").get_attribute("data-chat-id") or ""


def elsewhere(page: Page, running: Server) -> Visitor:
    """The same person on another device, of which this browser hears nothing."""
    cookies = {cookie["name"]: cookie["value"] for cookie in page.driver.get_cookies()}
    csrf = page.find("meta[name=csrf-token]").get_attribute("content") or ""
    return Visitor(running.url, cookies=cookies, csrf=csrf)


def begun(page: Page, running: Server, message: str) -> None:
    """Sent from elsewhere, and left alone."""
    turn = Stream(elsewhere(page, running), f"/chat/{chat_of(page)}/messages", {"message": message})
    assert next(turn).kind == "turn_started"
    turn.leave()


def replies(page: Page, running: Server) -> list[str]:
    """What the server has kept, in every version, but for spaces that no page shows."""
    kept = json.loads(elsewhere(page, running).get(f"/chat/{chat_of(page)}/export.json").body)
    return [message["content"].strip() for message in kept["messages"] if message["role"] == "assistant"]


def body(page: Page) -> str:
    return page.all(".theirs .body")[-1].text.strip()


def said(page: Page) -> str:
    return page.all(".mine .bubble")[-1].text


def box(page: Page) -> str:
    return page.find("#message").get_attribute("value") or ""


def ends(page: Page, status: str = "completed") -> None:
    page.until(lambda: page.status_of_last() == status and page.find("#send").is_displayed())


def streams(page: Page) -> None:
    """At least two words have come, and there is more to come."""
    page.until(lambda: page.status_of_last() == "running" and len(body(page).split()) >= 2)


def numbers(upto: int) -> str:
    return " ".join(map(str, range(1, upto + 1)))


def press_stop(page: Page) -> None:
    """The page grows while it is aimed at: a click that misses is done again."""

    def is_pressed() -> bool:
        if page.status_of_last() != "running":
            return True
        button = page.find("#stop")
        if button.text == "Stop":
            button.click()
        return button.text == "Stopping…"

    page.until(is_pressed)


def press_escape(page: Page) -> None:
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)


def test_tabs_opened_before_and_during_a_turn_and_a_reload_all_show_it_exactly(
    page: Page, running: Server
) -> None:
    first, chat = page.driver.current_window_handle, page.driver.current_url
    page.driver.switch_to.new_window("window")
    before = page.driver.current_window_handle
    page.open(chat)
    page.sees("What can I help with?")
    # It stands beside the other and is never turned to: only the other can tell it.
    page.driver.execute_script(
        """for (const [target, name] of [[window, "focus"], [document, "visibilitychange"]])
            target.addEventListener(name, (event) => event.stopImmediatePropagation(), true)"""
    )

    page.driver.switch_to.window(first)
    send(page, "/long 250")
    streams(page)
    page.driver.switch_to.window(before)
    streams(page)
    assert said(page) == "/long 250"
    assert page.find("#stop").is_displayed()

    page.driver.switch_to.new_window("tab")
    during = page.driver.current_window_handle
    page.open(chat)
    streams(page)
    seen = body(page)

    page.driver.switch_to.window(first)
    page.driver.refresh()
    page.until(lambda: len(body(page)) > len(seen))
    assert numbers(250).startswith(body(page)), "not from its beginning, or twice"
    assert page.status_of_last() == "running", "too late to see that"
    for tab in (first, before, during):
        page.driver.switch_to.window(tab)
        ends(page)
        assert [body(page)] == replies(page, running) == [numbers(250)]
        assert len(page.all("#turns > .turn")) == 1
    send(page, "and on we go")
    page.until(lambda: "and on we go" in page.last_reply() and page.status_of_last() == "completed")


def test_what_another_device_sends_keeps_the_draft_and_is_followed(page: Page, running: Server) -> None:
    begun(page, running, "/long 60")
    send(page, "not to be lost")
    page.sees("Already answering in another tab.")
    assert box(page) == "not to be lost"
    streams(page)
    assert said(page) == "/long 60"
    ends(page)
    assert body(page) == numbers(60)
    assert box(page) == "not to be lost"
    assert "Already answering" not in page.text()
    page.find("#send").click()
    page.until(lambda: "not to be lost" in page.last_reply() and page.status_of_last() == "completed")
    assert box(page) == ""

    elsewhere(page, running).send(chat_of(page), "from my phone")
    link = page.find("#chat-groups a")
    page.driver.execute_script("window.dispatchEvent(new Event('focus'))")
    page.until(lambda: "from my phone" in body(page))
    assert link.is_displayed(), "a person about to press it has lost it"
    assert len(page.all("#turns > .turn")) == 3


def test_stop_by_button_and_by_key_keeps_what_was_said(page: Page, running: Server, cable: Cable) -> None:
    send(page, "/long 900")
    streams(page)
    page.press("More for this chat")
    press_escape(page)
    page.until(lambda: not page.all("details.menu[open]"))
    shown = body(page)
    page.until(lambda: body(page) != shown)
    assert page.find("#stop").text == "Stop", "the key that closed the menu has stopped the answer as well"
    press_stop(page)
    ends(page, "stopped")
    assert "Stopped." in page.last_reply()
    assert body(page)
    assert numbers(900).startswith(body(page))
    assert [body(page)] == replies(page, running)
    assert page.find("#status").get_attribute("textContent") == "Stopped"

    old = page.all(".turn")[-1].get_attribute("data-turn")
    page.press("Retry")
    streams(page)
    assert len(page.all("#turns > .turn")) == 1, "the new version does not stand in the place of the old one"
    page.open(f"/chat/{chat_of(page)}?version={old}")
    page.sees("An answer is being written in another version of this chat.")
    assert page.status_of_last() == "stopped"
    page.press("Show it")
    streams(page)
    press_escape(page)
    ends(page, "stopped")
    assert "2 of 2" in page.last_reply()

    page.find("#message").send_keys("/slow 60")
    cable.hold()
    page.find("#message").send_keys(Keys.ENTER)
    press_escape(page)
    page.until(lambda: page.find("#stop").text == "Stopping…")
    cable.let_go()
    ends(page, "stopped")
    assert not page.console()


def test_a_lost_connection_is_told_and_found_again(page: Page, running: Server, cable: Cable) -> None:
    send(page, "/long 150")
    streams(page)
    cable.cut()
    page.sees("Reconnecting…")
    shown = body(page)
    cable.mend()
    page.until(lambda: len(body(page)) > len(shown))
    assert numbers(150).startswith(body(page)), "some of it twice, or missing"
    assert page.status_of_last() == "running", "too late to see that"
    assert "Reconnecting…" not in page.text()
    ends(page)
    assert [body(page)] == replies(page, running) == [numbers(150)]


def test_a_page_whose_stream_gives_way_waits_without_alarm_and_goes_on(page: Page, running: Server) -> None:
    begun(page, running, "/long 200")
    page.driver.refresh()
    streams(page)
    turn_id = page.find("main.chat").get_attribute("data-running-turn")
    path, me = f"/chat/{chat_of(page)}/turns/{turn_id}/events", elsewhere(page, running)
    others = [Stream(me, path) for _ in range(6)]
    shown = [body(page)]

    def stands_still() -> bool:
        shown.append(body(page))
        return len(shown) > 5 and len(set(shown[-5:])) == 1

    page.until(stands_still)
    others[0].upto(len(shown[-1].split()) + 60)
    assert body(page) == shown[-1], "it has connected again before it was time"
    assert "Reconnecting" not in page.text()
    for stream in others:
        stream.leave()
    page.driver.execute_script("window.dispatchEvent(new Event('focus'))")
    ends(page)
    assert body(page) == numbers(200)


def stops(page: Page) -> None:
    """A press half a second after the button has appeared is taken for the second of a double click."""

    def is_stopping() -> bool:
        button = page.find("#stop")
        if not button.is_displayed() or button.get_attribute("aria-disabled") == "true":
            return True
        button.click()
        return False

    page.until(is_stopping)


def test_a_user_signed_out_while_following_keeps_the_draft(page: Page, cable: Cable) -> None:
    chat = page.driver.current_url
    send(page, "/long 900")
    streams(page)
    page.find("#message").send_keys("not to be lost")
    page.driver.delete_all_cookies()
    cable.cut()
    cable.mend()
    page.sees("You are signed out.")
    assert not page.all(".streaming")
    page.press("Sign in again")
    page.fill("username", "ada")
    page.fill("password", PASSWORD)
    page.find("main form button").click()
    page.until(lambda: page.driver.current_url == chat)
    streams(page)
    assert box(page) == "not to be lost"
    stops(page)
    ends(page, "stopped")


def test_a_worker_that_dies_leaves_an_interrupted_turn_that_can_be_retried(
    page: Page, running: Server
) -> None:
    send(page, "/long 80")
    streams(page)
    for worker in running.children():
        os.kill(worker, signal.SIGKILL)
    ends(page, "interrupted")
    assert "The server restarted while answering." in page.last_reply()
    assert numbers(80).startswith(body(page))
    page.press("Retry")
    ends(page)
    assert body(page) == numbers(80)
    page.until(lambda: "2 of 2" in page.last_reply())
    assert len(page.all("#turns > .turn")) == 1


def test_a_double_click_sends_once_and_stops_nothing(page: Page, running: Server) -> None:
    page.find("#message").send_keys("/long 30")
    ActionChains(page.driver).double_click(page.find("#send")).perform()
    ends(page)
    ActionChains(page.driver).double_click(page.find(".turn:last-child .again button")).perform()
    page.until(lambda: "2 of 2" in page.last_reply())
    ends(page)
    assert replies(page, running) == [numbers(30), numbers(30)]


def test_editing_and_regenerating_make_versions_that_links_lead_to(page: Page) -> None:
    send(page, "first thought")
    ends(page)
    send(page, "a question that followed")
    ends(page)
    page.find("#message").send_keys("a draft")
    page.driver.execute_script("arguments[0].click()", page.all("a.edit")[0])
    page.sees("Editing your message")
    assert box(page) == "first thought"
    press_escape(page)
    assert box(page) == "a draft"
    assert "Editing your message" not in page.text()

    page.find("#message").clear()
    page.find("#message").send_keys(Keys.ARROW_UP)
    assert box(page) == "a question that followed", "the last one"
    page.press("Cancel")
    page.driver.execute_script("arguments[0].click()", page.all("a.edit")[0])
    page.driver.refresh()
    page.sees("Editing your message")
    page.find("#message").clear()
    page.find("#message").send_keys("second thought", Keys.ENTER)
    ends(page)
    page.until(lambda: "2 of 2" in page.last_reply())
    assert "second thought" in body(page)
    assert "a question that followed" not in page.text()
    assert box(page) == ""

    page.press("Regenerate")
    page.until(lambda: "3 of 3" in page.last_reply())
    assert said(page) == "second thought"
    walk(page)


def walk(page: Page) -> None:
    """From the last of three versions of the first turn to the first, which had another turn after it."""
    page.find("[aria-label='Previous version']").click()
    page.until(lambda: page.find(".versions").text.split() == ["‹", "2", "of", "3", "›"])
    assert page.find(".versions").get_attribute("aria-label") == "Version 2 of 3"
    page.find("[aria-label='Previous version']").click()
    page.until(lambda: "1 of 3" in page.find(".versions").text)
    assert [turn.text for turn in page.all(".bubble")] == ["first thought", "a question that followed"]
    assert not page.all("[aria-label='Previous version']")
    send(page, "after the first")
    page.until(lambda: len(page.all("#turns > .turn")) == 3 and page.status_of_last() == "completed")
    assert "?" not in page.driver.current_url, "a reload would show another version"
    page.driver.refresh()
    page.until(lambda: "after the first" in page.last_reply())


def test_a_message_sent_from_an_earlier_page_is_answered_on_the_last(page: Page, running: Server) -> None:
    chat = page.driver.current_url.rsplit("/", 1)[1]
    db = Database(f"sqlite:///{running.log.parent}/instance/agentapp.sqlite3", ThreadBinder())
    add_turns(db, scope_of(db, chat), straight(70))
    db.close()
    page.driver.refresh()
    press_earlier(page)
    page.until(lambda: said(page) == "Question 40.")
    page.find("#message").send_keys(Keys.ARROW_UP)
    assert box(page) == "", "the last message is on another page"
    send(page, "and now?")
    page.until(lambda: [said(page), *page.driver.current_url.rsplit("/", 1)[1:]] == ["and now?", chat])
    ends(page)
    assert "and now?" in body(page)
    assert page.all(".mine .bubble")[-2].text == "Question 70."
    send(page, "one more")
    ends(page)
    page.press("Regenerate")
    page.until(lambda: "2 of 2" in page.last_reply())
    shown = [turn.get_attribute("textContent") for turn in page.all("#turns .bubble")]
    assert (shown[0], len(shown)) == ("Question 42.", 31), "what was on the page above stays there"
    press_earlier(page)
    page.until(lambda: said(page) == "Question 41.")


def press_earlier(page: Page) -> None:
    """At the top of the page, where the button that leads to its end is not above the link."""
    page.driver.execute_script("document.getElementById('scroller').scrollTop = -1e6")
    page.press("Earlier messages")


def test_without_script_there_are_edits_regenerations_and_versions_too(plain: Page) -> None:
    page = plain
    send(page, "first thought")
    page.until(lambda: "first thought" in body(page) and page.status_of_last() == "completed")
    send(page, "a question that followed")
    page.until(lambda: "a question that followed" in body(page) and page.status_of_last() == "completed")
    page.open(page.all("a.edit")[0].get_attribute("href") or "")
    page.sees("Editing your message")
    assert box(page) == "first thought"
    page.press("Cancel")
    page.until(lambda: box(page) == "")
    page.open(page.all("a.edit")[0].get_attribute("href") or "")
    page.until(lambda: box(page) == "first thought")
    page.find("#message").clear()
    send(page, "second thought")
    page.until(lambda: "2 of 2" in page.last_reply())
    assert "second thought" in body(page)
    page.press("Regenerate")
    page.until(lambda: "3 of 3" in page.last_reply())
    walk(page)


def test_without_script_the_text_so_far_is_shown_and_can_be_stopped(plain: Page, running: Server) -> None:
    page = plain
    begun(page, running, "/long 900")
    page.driver.refresh()
    streams(page)
    shown = page.until(lambda: body(page))
    page.until(lambda: body(page).startswith(f"{shown} "))  # it loads itself anew
    page.until(lambda: not page.find("#send").is_displayed())
    page.press("Stop")
    page.until(lambda: page.status_of_last() == "stopped")
    assert "Stopped." in page.last_reply()
    assert [body(page)] == replies(page, running)
    assert numbers(900).startswith(body(page))
    send(page, "still usable?")
    page.until(lambda: "still usable?" in page.last_reply())
