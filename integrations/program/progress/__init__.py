"""Progress of a recording: a status line on a terminal, a line per minute elsewhere."""
