"""A forecast laid beside a real profile."""
