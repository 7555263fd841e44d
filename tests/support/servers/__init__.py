"""Real servers, started for the tests that need them."""
