"""The `millrace` command: one short module per group of subcommands."""
