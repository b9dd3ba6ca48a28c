"""A real profile carried over to another GPU."""
