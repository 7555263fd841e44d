"""Decides how tasks and key groups move while topologies run: by request, by a new plan, or because a worker leaves."""
