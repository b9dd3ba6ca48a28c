"""Forecasts laid out for reading: HTML, tables of several GPUs, memory."""
