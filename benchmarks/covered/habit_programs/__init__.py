"""Programs of a few lines, each a habit of people who train or run models."""
