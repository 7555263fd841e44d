"""Topologies that run as they are: seeded, nothing to download. For benchmarks, demos and fault tests."""
