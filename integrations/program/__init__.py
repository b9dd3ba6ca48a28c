"""Runs a program of the user's inside a forecast, in a process of its own."""
