"""The table of modes, reports of training runs, and short trainings."""
