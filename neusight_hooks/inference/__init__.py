"""Models that generate: their phases, their cache, and what is told of them."""
