"""What people and tools read of a forecast: figures, words, traces, tables."""
