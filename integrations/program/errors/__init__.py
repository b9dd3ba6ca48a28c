"""What is said where a program fails, or neusight itself."""
