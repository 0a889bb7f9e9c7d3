"""A real browser: what a person sees on a page, and what a person does there."""

from __future__ import annotations

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
from selenium.webdriver.remote.webelement import WebElement

from tests.support.server import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
PASSWORD = "a long enough password"
TIMEOUT_SECONDS = 30.0

needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium with its driver on this machine"
)

T = TypeVar("T")


class Page:
    """What a person sees, and a few things a person does."""

    def __init__(self, driver: webdriver.Chrome, url: str, downloads: Path) -> None:
        self.driver, self.url, self.downloads = driver, url, downloads

    def anew(self, url: str) -> Page:
        """The same browser at another server: no cookies, one window, and nothing on the console yet."""
        first, *others = self.driver.window_handles
        for other in others:
            self.driver.switch_to.window(other)
            self.driver.close()
        self.driver.switch_to.window(first)
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.console()
        return Page(self.driver, url, self.downloads)

    def open(self, path: str) -> None:
        self.driver.get(path if path.startswith("http") else self.url + path)

    def find(self, selector: str) -> WebElement:
        return self.until(lambda: self.driver.find_element(By.CSS_SELECTOR, selector))

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, look: Callable[[], T]) -> T:
        """Look again and again until there is something to see."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                if seen := look():
                    return seen
            except (WebDriverException, IndexError):
                pass  # the page may change, or be another, while it is looked at
            if time.monotonic() > end:
                raise AssertionError(f"never seen; the page says: {self.text()[:2000]}")
            time.sleep(0.05)

    def text(self) -> str:
        return str(self.driver.execute_script("return document.body.innerText"))

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
def browser(directory: Path, *, script: bool) -> Iterator[Page]:
    """A new one, whose profile and downloads are in that directory."""
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
        "--force-prefers-reduced-motion",
        f"--user-data-dir={directory / 'profile'}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    prefs: dict[str, Any] = {"download.default_directory": str(directory / "downloads")}
    if not script:
        prefs["profile.managed_default_content_settings.javascript"] = 2
    options.add_experimental_option("prefs", prefs)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER or ""))
    try:
        yield Page(driver, "", directory / "downloads")
    finally:
        driver.quit()


def set_up(page: Page, running: Server) -> None:
    page.open(running.setup_link or "no set-up link was printed")
    page.fill("username", "ada")
    page.fill("password", PASSWORD)
    page.find("main form button").click()
    page.until(lambda: page.driver.current_url.endswith("/chat"))


def sign_in(page: Page, name: str = "ada") -> None:
    page.open("/login")
    page.fill("username", name)
    page.fill("password", PASSWORD)
    page.find("main form button").click()
    page.until(lambda: page.driver.current_url.endswith("/chat"))


def new_chat(page: Page) -> None:
    page.press("New chat")
    page.sees("What can I help with?")


def send(page: Page, words: str) -> None:
    page.find("#message").send_keys(words)
    page.find("#send").click()
