"""Checks without a GPU: the baseline, what is compared, the verdict and its text."""
