"""The folder that Python finds first where a recorded program starts it: PYTHONPATH names it."""
