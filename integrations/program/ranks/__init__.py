"""Ranks of one program run side by side, a process each."""
