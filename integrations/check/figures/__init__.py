"""The figures that a check judges, how much worse each may be, and the batch of a step."""
