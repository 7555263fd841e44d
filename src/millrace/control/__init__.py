"""Decisions, and nothing but: events in, commands out. No socket, thread, process or clock."""
