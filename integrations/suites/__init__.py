"""Suites of whole programs that others measured: run without a GPU, priced by each predictor."""
