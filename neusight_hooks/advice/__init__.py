"""What would make a program fit or run faster: each change computed, none guessed."""
