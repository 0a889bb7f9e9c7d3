"""The tools of the team that comes with agentapp."""
