"""What a program reads from the GPU: values that are known, and invented ones."""
