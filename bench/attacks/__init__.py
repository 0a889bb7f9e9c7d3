"""Attacks on a server of our own, each a bounded script: see docs/testing.md."""
