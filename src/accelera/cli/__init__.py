"""Command ``accelera``: what a machine has, plans, and products of files within a budget."""

from __future__ import annotations

from accelera.cli.app import app, main
from accelera.cli.failures import ExitCode

__all__ = ["ExitCode", "app", "main"]
