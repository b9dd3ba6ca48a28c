"""The version, alone, so that the packaging reads it without importing torch."""

__version__ = "0.1.0"
