"""What kernels are called in a profile."""
