"""Sparse tensors on the GPU: the tensors that they are made of, and the ops on these."""
