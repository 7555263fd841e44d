"""Suites and checks that several test files run."""
