"""The `holdfast` command: one module per noun, data to stdout, everything else to stderr."""

from holdfast.interfaces.cli.root import main

__all__ = ["main"]
