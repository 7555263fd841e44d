"""A batch of a topology, run inside Spark tasks; nothing here imports pyspark."""
