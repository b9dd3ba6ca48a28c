"""Ranks of one program that run side by side, and what travels between them."""
