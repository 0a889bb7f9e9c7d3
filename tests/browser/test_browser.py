"""A person with a real browser at the real server: once with script, once without."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import PASSWORD, Page, needs_chromium, new_chat, send, set_up, sign_in
from tests.support.server import Server, server

pytestmark = needs_chromium


@pytest.fixture(params=[True, False], ids=["with script", "without script"])
def script(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def page(running: Server, browsers: Callable[[bool], Page], script: bool) -> Page:
    """Nobody has signed in yet, and there is no account."""
    return browsers(script).anew(running.url)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path, workers=2, threads=16, env={"AGENTAPP_DEMO_DELAY": "0.03"}) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"AGENTAPP_DEMO_DELAY": "0.03"}
    with server(tmp_path_factory.mktemp("shared"), workers=2, threads=16, env=settings) as made:
        yield made


@pytest.fixture(scope="module")
def signed_in(shared: Server, browsers: Callable[[bool], Page]) -> Page:
    page = browsers(True).anew(shared.url)
    set_up(page, shared)
    return page


@pytest.fixture
def chat(signed_in: Page) -> Page:
    """A new chat of somebody who has signed in, with script."""
    signed_in.open("/chat")
    new_chat(signed_in)
    signed_in.console()  # what others have left there
    return signed_in


def test_the_whole_story(page: Page, running: Server) -> None:
    """Set-up link, sign out, sign in, send, reload, rename, export, delete, sign out."""
    set_up(page, running)
    page.open(running.setup_link or "")
    page.sees("There is an account already")
    page.open("/chat")
    page.press("ada")
    page.press("Sign out")
    page.until(lambda: "/login" in page.driver.current_url)

    page.fill("username", "ada")
    page.fill("password", "not the password")
    page.find("main form button").click()
    page.sees("The name or the password is not right")
    page.fill("username", "ada")
    page.fill("password", PASSWORD)
    page.find("main form button").click()
    page.until(lambda: page.driver.current_url.endswith("/chat"))
    page.sees("offline demo")

    page.press("New chat")
    page.sees("What can I help with?")
    send(page, "What is 17*23?")
    page.until(lambda: "17*23 = 391" in page.last_reply() and page.status_of_last() == "completed")
    assert "Triage → Maths" in page.text()
    page.find("details.tool summary").click()
    page.sees('"expression"')

    page.driver.refresh()
    page.until(lambda: "17*23 = 391" in page.last_reply())
    assert page.find("h1").text == "What is 17*23?"

    page.press("Rename chat")
    page.fill("title", "Sums & <b>products</b>")
    page.find("details.rename form button").click()
    page.until(lambda: page.find("h1").text == "Sums & <b>products</b>")

    chat = page.driver.current_url.split("#")[0].rsplit("/", 1)[1]
    page.press("More for this chat")
    page.press("Export as JSON")
    exported = page.downloads / f"chat-{chat}.json"
    page.until(exported.exists)
    assert [m["role"] for m in json.loads(exported.read_text())["messages"]] == ["user", "assistant"]

    page.open("/chat?q=products")
    page.press("Sums & <b>products</b>")
    page.press("More for this chat")
    page.press("Delete chat")
    page.sees("Sums & <b>products</b>")
    page.find("main form button").click()
    page.until(lambda: page.driver.current_url.endswith("/chat"))
    page.open(f"/chat/{chat}")
    page.sees("Not found")

    page.open("/chat")
    page.press("ada")
    page.press("Sign out")
    page.until(lambda: "/login" in page.driver.current_url)
    page.open("/chat")
    page.until(lambda: "/login" in page.driver.current_url)
    unexpected = [line for line in page.console() if "404" not in line and "401" not in line]
    assert not unexpected


def test_an_answer_streams_into_the_page(chat: Page) -> None:
    page = chat
    send(page, "/long 120")
    lengths: set[int] = set()

    def growing() -> bool:
        if page.status_of_last() == "running":
            lengths.add(len(page.all(".message.theirs .body")[-1].text))
        return len(lengths) >= 4

    page.until(growing)
    assert page.find("#log").get_attribute("aria-busy") == "true"
    page.until(lambda: page.status_of_last() == "completed")
    assert page.find("#log").get_attribute("aria-busy") == "false"
    assert page.find("#status").get_attribute("textContent") == "Answer complete"
    assert page.find("#message").get_attribute("value") == ""
    assert not page.console()


def test_failures_and_refusals_are_told_and_the_draft_is_kept(chat: Page) -> None:
    page = chat
    send(page, "/fail later")
    page.until(lambda: page.status_of_last() == "failed")
    assert "Request id" in page.last_reply()
    send(page, "still usable?")
    page.until(lambda: page.status_of_last() == "completed" and "still usable?" in page.last_reply())

    page.driver.delete_all_cookies()
    send(page, "typed after the login ended")
    page.sees("You are signed out.")
    assert page.find("#message").get_attribute("value") == "typed after the login ended"
    sign_in(page)


def test_keys_and_copy_buttons_work(chat: Page) -> None:
    page = chat
    box = page.find("#message")
    box.send_keys("two", Keys.SHIFT, Keys.ENTER, Keys.NULL, "lines")
    assert box.get_attribute("value") == "two\nlines"
    box.clear()
    box.send_keys("/markdown", Keys.ENTER)
    page.until(lambda: page.status_of_last() == "completed" and page.all(".code .copy"))
    assert page.all(".prose table")
    assert page.all(".code code span[class^=tok-]"), "the code is not highlighted"
    allowed = {"origin": page.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", allowed)
    page.find(".code .copy").click()
    page.until(lambda: page.find(".code .copy").text == "Copied")
    clipboard = page.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert clipboard == page.find(".code code").get_attribute("textContent")
    page.driver.execute_script("document.activeElement.blur()")
    page.find("body").send_keys("?")
    page.until(lambda: page.find("#keys").is_displayed())


def test_a_hostile_message_stays_text(chat: Page, shared: Server, browsers: Callable[[bool], Page]) -> None:
    send(chat, "<img src=x onerror=document.title='owned'> [x](javascript:alert(1)) <b>bold</b>")
    chat.until(lambda: chat.status_of_last() == "completed")
    check_is_text(chat)
    chat.driver.refresh()
    chat.until(lambda: chat.status_of_last() == "completed")
    check_is_text(chat)
    plain = browsers(False).anew(shared.url)
    sign_in(plain)
    plain.open(chat.driver.current_url)
    plain.until(lambda: plain.status_of_last() == "completed")
    check_is_text(plain)


def check_is_text(page: Page) -> None:
    assert not page.all(".turn img, .turn b, .turn a[href^=javascript]")
    assert "owned" not in page.driver.title.split("·")[-1]
    assert "<b>bold</b>" in page.last_reply()
