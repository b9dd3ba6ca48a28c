"""The figures that a check judges, how much worse each may be, and what a step takes in."""
