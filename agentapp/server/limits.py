"""How long a client may take, and how much it may send, before its connection is closed."""

from __future__ import annotations

HEAD_SECONDS = 10.0  # from the first byte to the end of the headers; also for a connection that sends nothing
BODY_SECONDS = 30.0
# A body that is not whole after so many seconds must have come at least at this rate.
BODY_GRACE_SECONDS = 10.0
BODY_BYTES_A_SECOND = 500
SEND_SECONDS = 30.0  # without the client taking anything of its answer
# A stream that no thread may wait for: what is beyond the system's own buffer waits here.
MAX_BEHIND_BYTES = 64 * 1024
LINGER_SECONDS = 2.0  # for the client to hang up, after an answer that was the last one
MAX_LINGER_BYTES = 256 * 1024

# Between two requests. A client that has not signed in is a stranger and has nothing to lose.
KEEPALIVE_SECONDS = 75.0
STRANGER_KEEPALIVE_SECONDS = 25.0
STOPPING_KEEPALIVE_SECONDS = 2.0  # a request may be on its way already
# A proxy, which may have sent a form that it must not send again. It closes the connections that it does not
# need before that: see `keepalive_timeout` in deploy/nginx.
STOPPING_PROXY_KEEPALIVE_SECONDS = 5.0

# A request that is not whole after so many seconds counts as half-sent.
HALF_SENT_AFTER_SECONDS = 2.0
HALF_SENT_WORKER = 512  # of one worker, from all addresses

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 1024 * 1024
MAX_BODY_BYTES_SIGNED_OUT = 16 * 1024
MAX_HALF_SENT_BYTES = 64 * 1024 * 1024  # of all half-sent requests of one worker together
MAX_UNSENT_BYTES = 128 * 1024 * 1024  # of all answers that clients of one worker are slow to take
MAX_CHUNKS = 1_000  # of one request: each takes time, however small it is

# In the WSGI environment of a request that could not be read: its status, and what is wrong with it. So that
# such a request is answered by the application too, in the same form as any other error.
UNREADABLE = "agentapp.unreadable"
# To be called when the request has begun what takes long, and now mostly waits.
HAS_BEGUN = "agentapp.has_begun"
# The slot that was taken for a page when its request came in, or why there was none.
PAGE_SLOT = "agentapp.page_slot"
# The client of this request, to be written to while its answer is still being made: see `Answer.send_now`.
CLIENT = "agentapp.client"
