"""Strategies of migration as steps, without carrying them out."""
