"""State as values: what a snapshot is made of, how it is written down and put together again. No socket, disk or clock."""
