"""Models that are served: recorded from a config, a file or a generation, and shown under a load."""
