"""Where one step ends and the next begins, and what a step holds; equal steps folded."""
