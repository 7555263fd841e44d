"""Benchmarks of Millrace, beside other engines on the same input."""
