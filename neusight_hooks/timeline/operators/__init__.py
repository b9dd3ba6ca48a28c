"""Operators around and below the ops of a timeline, as a profile of the same program shows them."""
