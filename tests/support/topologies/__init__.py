"""Topologies and components that workers import by name."""
