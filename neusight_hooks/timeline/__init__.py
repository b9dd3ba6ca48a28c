"""When each op and kernel runs: priced, scheduled on a host lane and streams."""
