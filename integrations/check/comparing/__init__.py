"""Two forecasts of a program side by side, explained as a check explains a regression."""
