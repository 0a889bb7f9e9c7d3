"""Other people's servers: how they are installed, started and spoken to."""
