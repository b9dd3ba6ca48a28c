"""While open, a machine without CUDA answers as the target GPU would; afterwards as before."""
