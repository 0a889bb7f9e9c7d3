"""What a turn costs beside an app that only forwards: see ``__main__.py``, or run it with ``--help``."""
