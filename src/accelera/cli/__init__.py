"""Command ``accelera``: what a machine has, plans, and products of files within a budget."""

from __future__ import annotations

from accelera.cli.app import app as app
from accelera.cli.app import main as main
from accelera.cli.failures import ExitCode as ExitCode

__all__: list[str] = []  # a program: nothing of it is for import by users
