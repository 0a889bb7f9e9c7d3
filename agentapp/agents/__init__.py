"""Agents: describe them, build a fresh team for a turn, run it against a model."""
