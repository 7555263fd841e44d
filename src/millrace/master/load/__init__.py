"""Measured load: reports summed up, windows, and their history in a database."""
