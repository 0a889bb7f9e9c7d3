"""Drivers carry out what the loop decides: one for threads, one for asyncio."""
