"""Checkpoints: writing manifests, deleting old ones, resuming, and queries about state."""
