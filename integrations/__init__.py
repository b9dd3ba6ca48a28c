"""Shows a forecast: command line, TensorBoard, files."""
