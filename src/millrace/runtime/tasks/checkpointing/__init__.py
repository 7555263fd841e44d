"""Waves as a task sees them: aligned input, snapshots written and restored, answers to the master."""
