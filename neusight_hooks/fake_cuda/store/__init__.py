"""The private store below the overlay: copies, removals and what is new."""
