"""What was heard: a program as a value, and the recorder that writes it."""
