"""The master's connections to workers: joining, heartbeats, loss."""
