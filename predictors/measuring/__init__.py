"""Measurements of one GPU: what is measured, how it is timed, kept and fitted to."""
