"""Simulation: schedulers, schedule generator and estimators in closed loop with a model of nodes, links and load over time."""
