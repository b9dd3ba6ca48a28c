"""Trains the published predictors on the tables of their papers."""
