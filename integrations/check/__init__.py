"""Checks without a GPU: a baseline, what was seen, the judgement, its words."""
