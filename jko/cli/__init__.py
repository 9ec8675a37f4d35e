"""The command line `jko`."""

from jko.cli.app import main

__all__ = ["main"]
