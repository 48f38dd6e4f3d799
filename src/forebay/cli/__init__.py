"""The `forebay` command."""

from forebay.cli.app import app, main

__all__ = ["app", "main"]
