"""What programs define themselves: ops, gradients, tensor subclasses."""
