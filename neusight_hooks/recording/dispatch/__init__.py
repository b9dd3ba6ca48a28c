"""How an op runs without a GPU: torch's fake kernels, and a cache of earlier calls."""
