"""`neusight plan`: candidates of how a program may run, each forecast, laid in order."""
