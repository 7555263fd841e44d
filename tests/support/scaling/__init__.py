"""Support for the tests of migrations."""
