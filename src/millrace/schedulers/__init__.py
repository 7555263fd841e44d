"""Where every task should be: pure functions of graphs, cluster, load and the plans in force."""
