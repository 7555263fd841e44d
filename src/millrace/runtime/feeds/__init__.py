"""Feeds: batches of a streaming DataFrame on their way into a resident spout."""
