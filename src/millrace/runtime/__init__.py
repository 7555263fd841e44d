"""The resident engine: tasks, workers, channels and sockets. Knows nothing of Spark."""
