"""How long kernels take that move bytes."""
