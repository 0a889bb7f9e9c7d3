"""Turns: one message and everything done to answer it, from the first check to the settled row."""
