"""What ranks send each other, and the copies around it."""
