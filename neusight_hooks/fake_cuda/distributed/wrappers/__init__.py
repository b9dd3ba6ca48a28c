"""Data-parallel wrappers, checkpoints and launchers of torch, as far as they ask other ranks."""
