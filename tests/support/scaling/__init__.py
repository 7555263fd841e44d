"""Support for the tests of changes of parallelism."""
