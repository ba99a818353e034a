"""The `holdfast` command: one module per subcommand. Data goes to stdout, notes and errors to stderr."""

from holdfast.interfaces.cli.root import main

__all__ = ["main"]
