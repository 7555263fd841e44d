"""Ready-made topologies for benchmarks, demos and fault tests: seeded, nothing to download."""
