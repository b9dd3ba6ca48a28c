"""Kernels that packages bring with them, by the names of the ops that replace theirs."""
