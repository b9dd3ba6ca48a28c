"""Forecast what a PyTorch program does on a GPU that is not there."""
