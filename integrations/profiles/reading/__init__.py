"""Traces of torch.profiler, read."""
