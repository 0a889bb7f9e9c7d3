"""The least that answers on Chainlit: it forwards a message to the model, with no login and no storage.

It runs in a venv of its own and from a copy, so it takes nothing from the bench.
"""

from __future__ import annotations

import anthropic
import chainlit

client = anthropic.AsyncAnthropic()


@chainlit.on_message
async def answer(message: chainlit.Message) -> None:
    found = await client.messages.create(
        model="claude-sonnet-4-6",
        max_tokens=4096,
        messages=[{"role": "user", "content": message.content}],
    )
    await chainlit.Message(content=found.content[0].text).send()
