"""Diagrams of the wiring of modes, the table of modes, reports of training runs, and short trainings."""
