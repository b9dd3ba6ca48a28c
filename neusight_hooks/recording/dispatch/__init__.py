"""How an op runs without a GPU: torch's fake kernels, and what was remembered of earlier calls."""
