"""A timeline as the file that torch.profiler would have written: one lane a file, and the frame."""
