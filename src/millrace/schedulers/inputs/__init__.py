"""Readers of what schedulers are given: declared demands, and measured loads and traffic as arrays."""
