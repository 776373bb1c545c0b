"""Synthetic workloads: traces of models that need not exist."""

from accelera.simulator.workloads.generate import WORKLOADS, generate_synthetic_trace

__all__ = ["WORKLOADS", "generate_synthetic_trace"]
