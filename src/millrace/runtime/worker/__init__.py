"""The worker: one loop that hosts tasks and carries out assignments, and the process around it."""
