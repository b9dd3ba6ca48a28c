"""What torch is told before it compiles: settings, functions it knows, failures it forgives."""
