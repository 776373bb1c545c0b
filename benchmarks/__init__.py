"""Timings and byte counts behind every claim; ``python -m benchmarks`` runs them all."""
