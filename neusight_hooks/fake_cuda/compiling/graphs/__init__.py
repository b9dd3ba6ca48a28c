"""CUDA graphs of compiled code: when torch captures and launches them, and why it does not."""
