"""Forecasts inside other people's tools: TensorBoard, Lightning, transformers."""
