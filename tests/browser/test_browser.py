"""A person with a real browser at the real server: once with script, once without."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.serving import Server, server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
PASSWORD = "a long enough password"
PATIENCE = 30.0

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium with its driver on this machine"
)

T = TypeVar("T")


class Page:
    """What a person sees, and a few things a person does."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, path: str) -> None:
        self.driver.get(path if path.startswith("http") else self.url + path)

    def find(self, selector: str) -> WebElement:
        return self.until(lambda: self.driver.find_element(By.CSS_SELECTOR, selector))

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, look: Callable[[], T]) -> T:
        """Look again and again until there is something to see."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                if seen := look():
                    return seen
            except (WebDriverException, IndexError):
                pass  # the page may change, or be another, while it is looked at
            if time.monotonic() > end:
                raise AssertionError(f"never seen; the page says: {self.text()[:2000]}")
            time.sleep(0.02)

    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text

    def sees(self, words: str) -> None:
        self.until(lambda: words in self.text())

    def fill(self, name: str, value: str) -> None:
        field = self.find(f"[name={name}]")
        field.clear()
        field.send_keys(value)

    def press(self, words: str) -> None:
        """Press the visible button, link or menu with these words."""

        def pressed() -> bool:
            for candidate in self.all("button, a, summary"):
                if (
                    words in (candidate.text or candidate.get_attribute("textContent") or "")
                    and candidate.is_displayed()
                ):
                    candidate.click()
                    return True
            return False

        self.until(pressed)

    def last_reply(self) -> str:
        return self.all(".message.theirs")[-1].text

    def status_of_last(self) -> str | None:
        found = self.all(".turn")
        return found[-1].get_attribute("data-status") if found else None

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextmanager
def browser(tmp_path: Path, url: str, *, script: bool) -> Iterator[Page]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
        f"--user-data-dir={tmp_path / 'profile'}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    prefs: dict[str, Any] = {"download.default_directory": str(tmp_path / "downloads")}
    if not script:
        prefs["profile.managed_default_content_settings.javascript"] = 2
    options.add_experimental_option("prefs", prefs)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER or ""))
    try:
        yield Page(driver, url)
    finally:
        driver.quit()


@pytest.fixture(params=[True, False], ids=["with script", "without script"])
def script(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def page(running: Server, tmp_path: Path, script: bool) -> Iterator[Page]:
    """Nobody has signed in yet, and there is no account."""
    with browser(tmp_path, running.url, script=script) as made:
        yield made


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
def signed_in(shared: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser"), shared.url, script=True) as page:
        set_up(page, shared)
        yield page


@pytest.fixture
def chat(signed_in: Page) -> Page:
    """A new chat of somebody who has signed in, with script."""
    signed_in.open("/chat")
    new_chat(signed_in)
    signed_in.console()  # what others have left there
    return signed_in


def set_up(page: Page, running: Server) -> None:
    page.open(running.setup_link or "no set-up link was printed")
    page.fill("username", "ada")
    page.fill("password", PASSWORD)
    page.find("main form button").click()
    page.until(lambda: page.driver.current_url.endswith("/chat"))


def sign_in(page: Page) -> None:
    page.open("/login")
    page.fill("username", "ada")
    page.fill("password", PASSWORD)
    page.find("main form button").click()
    page.until(lambda: page.driver.current_url.endswith("/chat"))


def new_chat(page: Page) -> None:
    page.press("New chat")
    page.sees("What can I help with?")


def send(page: Page, words: str) -> None:
    page.find("#message").send_keys(words)
    page.find("#send").click()


def test_the_whole_story(page: Page, running: Server, tmp_path: Path, script: bool) -> None:
    """Set-up link, sign out, sign in, send, reload, rename, export, delete, sign out."""
    set_up(page, running)
    page.open(running.setup_link or "")
    page.sees("used already")
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
    exported = tmp_path / "downloads" / f"chat-{chat}.json"
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


def test_a_hostile_message_stays_text(chat: Page, shared: Server, tmp_path: Path) -> None:
    send(chat, "<img src=x onerror=document.title='owned'> [x](javascript:alert(1)) <b>bold</b>")
    chat.until(lambda: chat.status_of_last() == "completed")
    check_is_text(chat)
    chat.driver.refresh()
    chat.until(lambda: chat.status_of_last() == "completed")
    check_is_text(chat)
    with browser(tmp_path, shared.url, script=False) as plain:
        sign_in(plain)
        plain.open(chat.driver.current_url)
        plain.until(lambda: plain.status_of_last() == "completed")
        check_is_text(plain)


def check_is_text(page: Page) -> None:
    assert not page.all(".turn img, .turn b, .turn a[href^=javascript]")
    assert "owned" not in page.driver.title.split("·")[-1]
    assert "<b>bold</b>" in page.last_reply()
