"""Schedulers: pure functions that place tasks on slots, given graphs, cluster, load and the plans in force."""
