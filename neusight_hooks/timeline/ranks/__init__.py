"""Several ranks placed in time together: each waits in its collectives for the others."""
