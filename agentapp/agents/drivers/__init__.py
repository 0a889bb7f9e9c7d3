"""Drivers carry out what the loop decides: one on threads, one in asyncio."""
