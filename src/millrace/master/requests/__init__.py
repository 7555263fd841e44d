"""Requests of the CLI and of other processes to a running master, and their answers."""
