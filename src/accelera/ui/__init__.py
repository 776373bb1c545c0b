"""Copilot's web UI: will it fit, what does it cost, and which ways are there; over HTTP alone."""

from accelera.ui.launch import start as start

__all__: list[str] = []  # a program: nothing of it is for import by users
