"""What functions of torch.cuda ask of the C++ core of a CUDA build."""
