"""What programs bring of their own: ops, gradients, kinds of tensors."""
