"""Immutable values that describe a running system: graph, cluster, load, plan."""
