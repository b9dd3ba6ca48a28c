"""A process of its own for a program, which the kernel keeps away from the user's files."""
