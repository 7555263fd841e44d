"""Components of the cluster tests, the records they keep, and helpers that run a LocalCluster."""
