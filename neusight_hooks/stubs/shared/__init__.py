"""What several stubs are made of: rows, gates, optimizers."""
