"""The `koordinator` command and its subcommands."""
