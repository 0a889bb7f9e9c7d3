"""Tools for the notes of a chat."""

from __future__ import annotations

from agentapp.agents.tool import ToolContext, ToolInputError, tool
from agentapp.errors import StorageFull, StorageUnavailable

MAX_NOTE_CHARS = 1_000
MAX_NOTES = 100


@tool
def add_note(context: ToolContext, text: str) -> str:
    """Keep a note for this chat, in the person's own words, up to 1,000 characters."""
    note = text.strip()
    if not note:
        raise ToolInputError("the note is empty")
    if len(note) > MAX_NOTE_CHARS:
        raise ToolInputError(f"the note has {len(note):,} characters; at most {MAX_NOTE_CHARS:,} are kept")
    # Tools of one reply run side by side, so a few may pass this together and end slightly above the cap.
    # That is accepted: the cap keeps a chat's notes from growing without end, it is not a promise.
    if len(context.notes.all(context.scope)) >= MAX_NOTES:
        raise ToolInputError(f"this chat has {MAX_NOTES} notes already; remove one first")
    try:
        number = context.notes.add(context.scope, note)
    except (StorageFull, StorageUnavailable) as error:
        raise ToolInputError(f"the note was not kept. {error}") from error
    return f"Noted as number {number}: {note}"


@tool
def list_notes(context: ToolContext) -> str:
    """List all notes of this chat with their numbers."""
    notes = context.notes.all(context.scope)
    if not notes:
        return "There are no notes in this chat yet."
    listed = "\n".join(f"{number}. {note}" for number, note in notes)
    return f"Notes of this chat:\n{listed}"


@tool
def remove_note(context: ToolContext, number: int) -> str:
    """Remove the note with this number. Numbers are those that list_notes shows."""
    if not context.notes.remove(context.scope, number):
        known = ", ".join(str(known) for known, _ in context.notes.all(context.scope))
        raise ToolInputError(
            f"there is no note {number}; " + (f"there are {known}" if known else "there are none")
        )
    return f"Note {number} is removed."
