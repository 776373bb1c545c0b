"""Observability: logs, metrics, spans, and observers of the user's own."""
