"""Ways out that a hostile agent tries, by topic. Each is a function that returns what it gained, or
raises what stopped it. They run inside the agent, so they use what an agent has."""
