"""Worker processes and other children of a test."""
