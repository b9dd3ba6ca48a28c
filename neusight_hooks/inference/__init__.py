"""Models that generate: their phases, their cache, and the figures of both."""
