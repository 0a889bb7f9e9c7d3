"""A copy of a whole installation from one database into another: `agentapp db copy`."""
