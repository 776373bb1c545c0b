"""Copilot's web UI: will it fit, what does it cost, and which ways are there; over HTTP alone."""

from accelera.ui.launch import start

__all__ = ["start"]
