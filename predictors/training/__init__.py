"""Reads tables of measurements, fits the corrections, and scores predictors."""
