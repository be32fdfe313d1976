"""Wiring diagrams of modes, from their code."""
