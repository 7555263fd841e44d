"""Requests to a running master, by the CLI and other processes, and their answers."""
