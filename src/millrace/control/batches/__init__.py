"""Batches of the microbatch engine: their decisions, steps and stages, and the loop that carries the steps out."""
