"""Measurements of a model, each a function that returns rows."""
