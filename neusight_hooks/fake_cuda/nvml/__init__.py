"""NVIDIA's management library and `nvidia-smi`, as they answer on a machine with the target."""
