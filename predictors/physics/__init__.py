"""How long a kernel takes by what the hardware can do: one class of kernels a file."""
