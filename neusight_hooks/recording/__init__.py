"""What was recorded: a program as a value, and the recorder that writes it."""
