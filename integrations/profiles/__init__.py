"""Real profiles and measurements: read, laid beside a forecast, fitted to."""
