"""Decides when a scheduler runs, on which loads, and whether its plan is worth the moves."""
