"""Streaming DataFrames as spouts, and sinks that write DataFrames."""
