"""Messages for failures of a program, and of neusight itself."""
