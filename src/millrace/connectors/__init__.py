"""Built-in spouts and sinks. The docstring of each lists the `config` keys that it reads."""
