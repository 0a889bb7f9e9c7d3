"""How a browser is called in plain words: "Firefox on Linux". What it says of itself can be any text."""

from __future__ import annotations

# The first that fits counts: most browsers say that they are others too.
BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("SamsungBrowser/", "Samsung Internet"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("Chromium/", "Chromium"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
    ("curl/", "curl"),
    ("python-", "Python"),
    ("Python-", "Python"),
)
SYSTEMS = (
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Android", "Android"),
    ("CrOS", "ChromeOS"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)
MAX_KEPT_CHARS = 256
MAX_ADDRESS_CHARS = 64
UNKNOWN = "Unknown browser"


def browser_in_words(said: str) -> str:
    """``said`` is its header User-Agent."""
    browser = next((name for sign, name in BROWSERS if sign in said), "")
    system = next((name for sign, name in SYSTEMS if sign in said), "")
    if not browser:
        return f"{UNKNOWN} on {system}" if system else UNKNOWN
    return f"{browser} on {system}" if system else browser


def kept(text: str | None, max_chars: int) -> str:
    """What a database can hold and a page can show of a header."""
    return "".join(char if char.isprintable() else " " for char in (text or "")[:max_chars])
