"""Taps: streams of a running topology that other processes read."""
