"""The tools of the shipped team."""
