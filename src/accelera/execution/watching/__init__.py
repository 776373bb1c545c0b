"""Who hears of what the executor does: logs, metrics, spans, and observers of the user's own."""
