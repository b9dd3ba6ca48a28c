"""How far a recording is, while it runs: a line on a terminal, a line a minute elsewhere."""
