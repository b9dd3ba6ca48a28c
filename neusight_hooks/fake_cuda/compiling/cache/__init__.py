"""Graphs that were compiled before, kept on disk."""
