"""The examples in the documentation, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def example(page: str, words: str) -> str:
    """The one Python example of a page that contains these words."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    (found,) = [block for block in blocks if words in block]
    return str(found)
