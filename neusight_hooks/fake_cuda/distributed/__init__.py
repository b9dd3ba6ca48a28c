"""torch.distributed with one process: it is one rank of many, and the others are answered for."""
