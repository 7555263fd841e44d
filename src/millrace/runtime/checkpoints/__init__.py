"""Checkpoint stores (directory, Redis, Arrow file systems) and the checkpoints in them."""
