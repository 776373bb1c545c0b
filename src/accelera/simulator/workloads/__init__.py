"""Synthetic workloads: traces of models that need not exist."""

from accelera.simulator.workloads.generate import WORKLOADS, expected_accesses, generate_synthetic_trace

__all__ = ["WORKLOADS", "expected_accesses", "generate_synthetic_trace"]
