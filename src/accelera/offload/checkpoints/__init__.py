"""Checkpoints read and written tensor by tensor."""
