"""Layouts of a model over many GPUs: found, priced from one block, and written as a script."""
