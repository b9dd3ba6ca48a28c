"""The program's own profilers, which show the forecast of what runs meanwhile."""
