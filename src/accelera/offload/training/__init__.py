"""Training of offloaded models: gradients, optimizer states, and what autograd saves."""

from __future__ import annotations
