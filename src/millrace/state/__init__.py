"""State as values: the parts of a snapshot, their encoding and their reassembly. No sockets, disk or clock."""
