"""A local server that speaks the Messages API, well or badly, as a script or the user's own text tells it.

In a test: ``with MessagesApi() as api: AnthropicProvider("key", api.url)``. By hand:
``python -m tests.support.messages_api --port 8081``.

Without a script the last user text decides. It is echoed, unless it holds directives:

    [[status:529]] [[retry-after:3]]    answer with an error
    [[hang:SECONDS]]                    silence before the first byte
    [[mute:SECONDS]]                    silence after the head of the response
    [[stall:SECONDS]]                   silence after the first piece
    [[slow:SECONDS]]                    a pause between pieces
    [[cut:N]] [[reset:N]]               end (FIN, RST) the connection after N bytes of body
    [[end-early]]                       a clean end of the body, without message_stop
    [[garbage]]                         the same after an event that is no JSON
    [[error-event:overloaded_error]]    the same after an error event
    [[no-usage]]                        an answer whose end does not say what it has cost
    [[stop:max_tokens]]                 another stop reason
    [[tool:name {"a": 1}]]              a tool call; may be repeated
    [[writes:N]]                        a tool call whose input is so many pieces long, and never whole
"""

from tests.support.messages_api.answers import events_of
from tests.support.messages_api.directives import respond_as_told
from tests.support.messages_api.model_list import Models
from tests.support.messages_api.prompt_cache import PromptCache
from tests.support.messages_api.scripts import Script, Tokens
from tests.support.messages_api.server import MessagesApi, Responder

__all__ = [
    "MessagesApi",
    "Models",
    "PromptCache",
    "Responder",
    "Script",
    "Tokens",
    "events_of",
    "respond_as_told",
]
