"""Functions on files, exchanged for those that leave the user's files alone."""
