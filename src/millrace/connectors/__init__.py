"""Spouts and sinks that come with Millrace. Each one's docstring lists the `config` keys it reads."""
