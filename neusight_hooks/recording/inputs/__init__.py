"""What enters a step: batches that loaders yield, inputs of outermost modules and functions."""
