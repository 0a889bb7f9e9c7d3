"""A Markdown parser for one reply, and the bounds of the work that one reply may make.

With them the worst text takes about a tenth of a second. Without them, some texts take minutes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

MAX_CHARS: Final = 50_000
MAX_DEPTH: Final = 80  # below markdown-it's own 100, where it would silently drop what is deeper
MAX_HIGHLIGHTED_CHARS: Final = 20_000  # of code in one reply
MAX_CODE_LINE_CHARS: Final = 1_000  # a longer line is data, and some lexers take cubic time for it
MAX_HIGHLIGHT_SECONDS: Final = 0.1  # of CPU time: some lexers look ahead again at every token
LEXER_COST_CHARS: Final = 200  # starting one lexer costs as much as highlighting so many characters
MAX_CELLS: Final = 3_000  # cells of all tables in one reply
MAX_BRACKET_WORK: Final = 5_000_000  # see Bounds.allows_inline
# The next five are several times what 50,000 characters of ordinary text need.
MAX_ADDRESSES: Final = 500  # to take an address apart costs as much as to read twenty words
MAX_BLOCK_STEPS: Final = 6_000  # how often the parser asks what begins at a line
MAX_INLINE_STEPS: Final = 20_000  # how often it asks what begins at a character
MAX_TOKENS: Final = 12_000
MAX_HTML_CHARS: Final = 250_000

_DELIMITER_ROW = re.compile(r"[ \t|:-]+")


class TooMuchWork(Exception):
    """The text is to be shown as it was written."""


def require(within_limit: bool) -> None:
    if not within_limit:
        raise TooMuchWork


@dataclass
class Bounds:
    """What one reply may still use up. There is one for each call of `render`."""

    clock: Callable[[], float]
    highlighted_chars: int = MAX_HIGHLIGHTED_CHARS
    highlight_seconds: float = MAX_HIGHLIGHT_SECONDS
    cells: int = MAX_CELLS
    bracket_work: int = MAX_BRACKET_WORK
    block_steps: int = MAX_BLOCK_STEPS
    inline_steps: int = MAX_INLINE_STEPS
    tokens: int = MAX_TOKENS
    addresses: int = MAX_ADDRESSES

    def allows_highlighting(self, code: str) -> bool:
        self.highlighted_chars -= len(code) + LEXER_COST_CHARS
        return self.highlighted_chars >= 0 and self.highlight_seconds > 0

    def allows_table(self, columns: int, rows: int) -> bool:
        self.cells -= columns * rows
        return self.cells >= 0

    def allows_inline(self, content: str) -> bool:
        # For every bracket that is not closed, the parser looks through the rest of the paragraph.
        self.bracket_work -= content.count("[") * len(content)
        return self.bracket_work >= 0

    def count_block_step(self, state: StateBlock, start: int, end: int, silent: bool) -> bool:
        """A rule of the parser that comes before all others and never applies. Without it, a line deep inside
        of quotes would be looked at once for each of them, and thousands of tiny lists would take seconds.
        """
        self.block_steps -= 1
        require(self.block_steps >= 0 and len(state.tokens) <= self.tokens)
        return False

    def count_inline_step(self, state: StateInline, silent: bool) -> bool:
        """The same for what is inside a line: emphasis, links, code."""
        self.inline_steps -= 1
        require(self.inline_steps >= 0 and len(state.tokens) <= self.tokens)
        return False

    def count_address(self) -> None:
        self.addresses -= 1
        require(self.addresses >= 0)


class _Parser(MarkdownIt):
    def __init__(self, bounds: Bounds) -> None:
        super().__init__("js-default", {"html": False, "linkify": False, "typographer": False})
        self._bounds = bounds

    def normalizeLink(self, url: str) -> str:  # noqa: N802 - the parser calls this for every address it reads
        self._bounds.count_address()
        return super().normalizeLink(url)


def make_parser(bounds: Bounds) -> MarkdownIt:
    """A parser for one reply. None is shared: a parser keeps its rules in lists that can be changed."""
    parser = _Parser(bounds)

    def bounded_inline(state: StateCore) -> None:
        bounds.tokens -= len(state.tokens)
        for token in state.tokens:
            if token.type == "inline":
                token.children = []
                if bounds.allows_inline(token.content):
                    state.md.inline.parse(token.content, state.md, state.env, token.children)
                    bounds.tokens -= len(token.children)
                else:
                    token.children.append(Token("text", "", 0, content=token.content))

    def bounded_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        if bounds.cells < 0 or start + 2 > end or not _DELIMITER_ROW.fullmatch(_line(state, start + 1)):
            return False
        if not silent:
            rows = sum(1 for _ in takewhile(lambda at: not state.isEmpty(at), range(start, end)))
            if not bounds.allows_table(_line(state, start + 1).count("|") + 1, rows):
                return False
        return table(state, start, end, silent)

    parser.core.ruler.at("inline", bounded_inline)
    parser.block.ruler.at("table", bounded_table, {"alt": ["paragraph", "reference"]})
    chains = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("table", "count", bounds.count_block_step, {"alt": chains})
    parser.inline.ruler.before("text", "count", bounds.count_inline_step)
    return parser


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]
