"""A separate process for a program, which the kernel keeps from changing the user's files."""
