"""Models that generate: their phases, their cache, and what is shown of them."""
