"""Tables of measured kernels, by source: how their rows become kernels."""
