"""What a kernel is, what a GPU is, how long one takes on the other."""
