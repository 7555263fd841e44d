"""Support for the tests of measured load."""
