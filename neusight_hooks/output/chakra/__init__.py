"""What each rank computes and communicates as MLCommons Chakra execution traces, for simulators."""
