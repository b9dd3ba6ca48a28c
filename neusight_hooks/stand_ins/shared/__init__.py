"""What several stand-ins are made of: rows, gates, optimizers."""
