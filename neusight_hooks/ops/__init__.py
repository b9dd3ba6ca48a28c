"""Which kernels an op launches."""
