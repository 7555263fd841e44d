"""Cutting a graph of tasks into parts that fit places: shared by `slstream` and `multilevel`."""
