"""Benchmarks: what Millrace claims, measured, beside other engines on the same input."""
