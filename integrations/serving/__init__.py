"""Models that are served: recorded from a config or a file, and shown under a load."""
