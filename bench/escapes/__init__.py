"""Ways out that a hostile agent tries, by topic. Each is a function that returns what it gained, or
raises what stopped it. They run inside the agent, so they use what an agent has."""

TOPICS = (
    "devices", "exhaustion", "files", "frames", "memory", "network", "processes", "programs",
    "spaces", "surface", "writing",
)  # fmt: skip
"""The modules that list attempts."""
