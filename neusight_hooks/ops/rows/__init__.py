"""Ops that take many elements in and give few out, a row or a window at a time."""
