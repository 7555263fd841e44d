"""`bench migration`: every strategy of migration on the workloads of the papers, with the papers' figures beside ours."""
