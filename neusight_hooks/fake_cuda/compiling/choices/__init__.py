"""What Inductor would choose by timing on a GPU, chosen by prices."""
