"""What is tried under a forecast, one kind a file, and how it came out."""
