"""What torch is reported before it compiles: settings, functions it knows, failures it forgives."""
