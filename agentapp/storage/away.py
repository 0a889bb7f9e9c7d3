"""Whether it helps to wait for a PostgreSQL server that lets nobody in."""

from __future__ import annotations

from sqlalchemy import exc

# What it says about a URL with which nobody will ever be let in. Of a refused connection the driver knows no
# code, only these words. In another language they are not recognised, and there is a line a minute with them.
HOPELESS = (
    "authentication failed",
    "auth failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "no such database",
    "no such user",
    "not permitted to log in",
    "permission denied for database",
    "does not support SSL",
    "certificate",
    "invalid connection option",
    "invalid port number",
    "invalid integer value",
)


def is_away(error: exc.DBAPIError) -> bool:
    """Not there, not there yet, or full: connection refused, name not found, starting up, too many clients.
    False for what waiting does not change: a wrong password, user or name of a database.
    """
    return isinstance(error, exc.OperationalError) and not any(words in str(error.orig) for words in HOPELESS)
