"""The tool that searches the user's own past chats."""

from __future__ import annotations

from agentapp.agents.tool import ToolContext, ToolInputError, tool

MAX_SEARCH_CHARS = 200
MAX_HITS = 20
MAX_PASSAGE_CHARS = 300


@tool
def search_past_chats(context: ToolContext, words: str, limit: int = 5) -> str:
    """Search the person's own earlier chats for words. Tells up to `limit` (1 to 20) passages, each with
    the chat's title and day.
    """
    wanted = " ".join(words.split())
    if not wanted:
        raise ToolInputError("there are no words to search for")
    if len(wanted) > MAX_SEARCH_CHARS:
        raise ToolInputError(f"search for at most {MAX_SEARCH_CHARS} characters; a few words find more")
    if not 1 <= limit <= MAX_HITS:
        raise ToolInputError(f"limit must be from 1 to {MAX_HITS}")
    hits = context.past_chats.search(context.scope, wanted, limit)[:limit]
    if not hits:
        return f"Nothing in your past chats matches {wanted!r}."
    listed = "\n".join(f"- {day}, {title}: {_shorten(passage)}" for title, day, passage in hits)
    return f"Found in your past chats for {wanted!r}:\n{listed}"


def _shorten(passage: str) -> str:
    line = " ".join(passage.split())
    return line if len(line) <= MAX_PASSAGE_CHARS else line[: MAX_PASSAGE_CHARS - 3] + "..."
