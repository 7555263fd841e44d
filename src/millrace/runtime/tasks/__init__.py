"""Running spouts and bolts: user code, output, alignment of waves, snapshots."""
