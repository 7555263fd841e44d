"""Spark executors: workers launched on them, partitions placed on them, cores left free."""
