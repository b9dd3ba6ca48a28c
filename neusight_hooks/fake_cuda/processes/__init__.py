"""Processes that a program starts: they join its forecast, and report what they recorded."""
