"""Batches of a microbatch topology as Spark jobs."""
