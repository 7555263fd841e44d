"""The path of a plan to the workers: coordination store, one agent per node, plan store."""
