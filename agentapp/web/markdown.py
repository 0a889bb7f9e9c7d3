"""A reply's Markdown as safe HTML: parse it, highlight the code, then let only an allow-list through.

Replies are written by a model and may quote anybody, so every step has a limit. What is above a limit is not
refused or cut: it is escaped and shown as it was written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Final

import markdown_it
import nh3
import pygments
from markdown_it.common.utils import unescapeAll
from markdown_it.token import Token
from markupsafe import Markup
from pygments import format as format_tokens
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES

from agentapp.events import Rendered, storable
from agentapp.web.markdown_parser import (
    MAX_CHARS,
    MAX_CODE_LINE_CHARS,
    MAX_DEPTH,
    MAX_HTML_CHARS,
    Bounds,
    TooMuchWork,
    make_parser,
    require,
)

# Which renderer made a kept HTML. Count it up with every change of what is made of a text, so that messages
# which are kept already are rendered anew; a new version of a library does the same by itself.
RENDERER: Final = f"1/{markdown_it.__version__}/{pygments.__version__}/{nh3.__version__}"  # type: ignore[attr-defined]

# fmt: off
TAGS: Final = frozenset((
    "a", "blockquote", "br", "code", "del", "div", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol",
    "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
))
# fmt: on
CODE_CLASSES: Final = frozenset(f"tok-{short}" for short in STANDARD_TYPES.values() if short)
URL_SCHEMES: Final = frozenset({"http", "https", "mailto"})
LINK_REL: Final = "noopener noreferrer nofollow"

# Only languages that people ask about. To look up any other name, Pygments searches every installed plugin,
# and its rarer lexers have patterns that take exponential time.
# fmt: off
LANGUAGES: Final = frozenset((
    "bash", "c", "c++", "c#", "cpp", "cs", "css", "diff", "docker", "dockerfile", "go", "golang",
    "html", "http", "ini", "java", "javascript", "js", "json", "jsx", "kotlin", "lua", "make",
    "makefile", "nginx", "php", "powershell", "py", "py3", "python", "python3", "pycon", "r", "rb",
    "ruby", "rs", "rust", "scala", "sh", "shell", "sql", "swift", "toml", "ts", "tsx", "typescript",
    "xml", "yaml", "yml", "zsh",
))
# fmt: on

# Of such sentences on one line Markdown makes one paragraph. To find that out takes as long as a commit.
_WORD: Final = r"[A-Za-z0-9]+(?:['-][A-Za-z0-9]+)*"
PLAIN_WORDS: Final = re.compile(rf"(?![0-9]){_WORD}(?:[,;:.!?]? {_WORD})*[.!?]?")
_LINK = re.compile(r"(?:https?://|mailto:)[^\s]", re.IGNORECASE)
_BARE_URL = re.compile(r"""https?://[^\s<>"'`]+""", re.IGNORECASE)
_LANGUAGE = re.compile(r"[\w+#.-]{1,24}")
_ALIGNED = re.compile(r"text-align:(center|right)")


def render(text: str, *, clock: Callable[[], float] = time.thread_time) -> Markup:
    """The reply as HTML that is safe to put into a page. Never raises, for any text, and is never slow."""
    text = storable(text)
    if PLAIN_WORDS.fullmatch(text) and len(text) <= MAX_CHARS:
        return Markup(f"<p>{text}</p>\n")  # noqa: S704 - nothing in it means anything in HTML
    try:
        return _sanitise(_as_html(text, Bounds(clock)))
    except TooMuchWork:
        return _as_plain_text(text)


def rendered(text: str, kept: Rendered | None = None) -> Rendered:
    """What was kept, if this renderer made it; otherwise the text rendered now."""
    if kept is not None and kept.renderer == RENDERER:
        return kept
    return Rendered(str(render(text)), RENDERER)


def _as_html(text: str, bounds: Bounds) -> str:
    """Raises `TooMuchWork` if a limit is reached for which nothing less than the whole text gives way."""
    require(len(text) <= MAX_CHARS)
    parser = make_parser(bounds)
    tokens = parser.parse(text)
    require(all(token.level <= MAX_DEPTH for token in tokens))
    html: str = parser.renderer.render(list(_adapt(tokens, bounds)), parser.options, {})
    require(len(html) <= MAX_HTML_CHARS)
    return html


def _adapt(tokens: Iterable[Token], bounds: Bounds) -> Iterator[Token]:
    """Fit the tokens into a message on the page.

    Headings are lowered, because each message has a heading of its own. Code and tables get a box of their
    own, so that they scroll by themselves if they are wide.
    """
    for token in tokens:
        match token.type:
            case "heading_open" | "heading_close":
                token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
                yield token
            case "inline":
                token.children = list(_adapt_links(token.children or (), bounds))
                yield token
            case "fence" | "code_block":
                yield _html(_code_block(token.info, token.content, bounds))
            case "table_open":
                yield _html('<div class="table">')
                yield token
            case "table_close":
                yield token
                yield _html("</div>")
            case "th_open" | "td_open":
                aligned = _ALIGNED.fullmatch(str(token.attrs.pop("style", "")))
                if aligned:
                    token.attrs["class"] = aligned[1]
                yield token
            case _:
                yield token


def _adapt_links(children: Iterable[Token], bounds: Bounds) -> Iterator[Token]:
    """Keep links to other sites and no others.

    An image becomes a link, because loading it would tell its host who reads the reply.
    """
    inside = hidden = False
    for token in children:
        match token.type:
            case "link_open":
                inside = True
                token.hidden = hidden = not _LINK.match(str(token.attrs.get("href", "")))
                yield token
            case "link_close":
                token.hidden, inside = hidden, False
                yield token
            case "image":
                source = str(token.attrs.get("src", ""))
                label = _alt_text(token) or source
                yield from [_text(label)] if inside or not _LINK.match(source) else _link(source, label)
            case "text" if not inside:
                yield from _with_bare_urls(token.content, bounds)
            case _:
                yield token


def _with_bare_urls(text: str, bounds: Bounds) -> Iterator[Token]:
    done = 0
    for found in _BARE_URL.finditer(text):
        url = found[0].rstrip(".,:;!?*_~")
        if url.endswith(")") and "(" not in url:
            url = url.rstrip(").,:;!?*_~")
        if _LINK.match(url):
            bounds.count_address()
            yield _text(text[done : found.start()])
            yield from _link(url, url)
            done = found.start() + len(url)
    yield _text(text[done:])


def _link(href: str, label: str) -> Iterator[Token]:
    yield Token("link_open", "a", 1, attrs={"href": href})
    yield _text(label)
    yield Token("link_close", "a", -1)


def _alt_text(image: Token) -> str:
    return "".join(child.content for child in image.children or ()).strip()


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _html(content: str) -> Token:
    return Token("html_block", "", 0, content=content)


def _code_block(info: str, code: str, bounds: Bounds) -> str:
    """A block of code with its language above it. The page's script adds the copy button there."""
    match = _LANGUAGE.match(unescapeAll(info).strip())
    language = match[0] if match else "text"
    head = f'<div class="code-head"><span class="code-lang">{escape(language)}</span></div>'
    body = _highlight(language.lower(), code, bounds) or escape(code, quote=False)
    # It can have the focus, so that a long line can be scrolled with the keyboard.
    return f'<div class="code">{head}<pre tabindex="0"><code>{body}</code></pre></div>\n'


def _highlight(language: str, code: str, bounds: Bounds) -> str | None:
    """None if the code is to be shown without colours."""
    if language not in LANGUAGES or not bounds.allows_highlighting(code):
        return None
    if any(len(line) > MAX_CODE_LINE_CHARS for line in code.split("\n")):
        return None
    # Its first use in a process compiles its patterns, which takes long and is not the fault of this reply.
    lexer = get_lexer_by_name(language, stripnl=False)
    started, seconds_left = bounds.clock(), bounds.highlight_seconds
    tokens = []
    for token in lexer.get_tokens(code):
        bounds.highlight_seconds = seconds_left - (bounds.clock() - started)
        if bounds.highlight_seconds <= 0:
            return None
        tokens.append(token)
    return format_tokens(tokens, HtmlFormatter(nowrap=True, classprefix="tok-"))


def _sanitise(html: str) -> Markup:
    safe = nh3.clean(
        html,
        tags=set(TAGS),
        clean_content_tags=set(),
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        allowed_classes={
            "div": {"code", "code-head", "table", "plain"},
            "span": {"code-lang", *CODE_CLASSES},
            "td": {"center", "right"},
            "th": {"center", "right"},
        },
        tag_attribute_values={"pre": {"tabindex": {"0"}}},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        url_schemes=set(URL_SCHEMES),
        url_relative="deny",
        link_rel=LINK_REL,
    )
    return Markup(safe)  # noqa: S704 - this is what the sanitiser let through


def _as_plain_text(text: str) -> Markup:
    return Markup('<div class="plain">{}</div>').format(text)
