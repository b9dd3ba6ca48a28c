"""The names of kernels in a profile."""
