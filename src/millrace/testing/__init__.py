"""For tests of topologies and of Millrace itself: a whole cluster in one process, and workers as plain processes."""
