"""Cutting a graph of tasks into parts that fit places, and matching parts to nodes: shared by `slstream` and `multilevel`."""
