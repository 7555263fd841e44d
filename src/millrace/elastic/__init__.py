"""Elasticity, decided: queueing models of a topology, numbers of tasks, and the loop that changes them."""
