"""What torch.compile needs to run whole without a GPU, and without Triton."""
