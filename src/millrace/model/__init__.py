"""What runs where, as immutable values: graph, cluster, load, plan. Nothing here does anything."""
