"""A multi-user chat-agent server in which one session's failure, cost or data is never another's."""

__version__ = "0.1.0"
