"""A model under a load of requests: steps priced from a few recordings, a scheduler, figures."""
