"""Pure decisions: events in, commands out. No socket, thread, process or clock."""
