"""Failures of devices: their classification, the batch size that fits, and the circuit breaker."""
