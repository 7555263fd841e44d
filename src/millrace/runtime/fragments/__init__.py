"""Erasure-coded fragments of snapshots, exchanged between workers and kept in their memory."""
