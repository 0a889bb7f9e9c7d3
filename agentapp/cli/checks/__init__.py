"""What `agentapp doctor` looks at: each check is a function that returns lines, and changes nothing."""
