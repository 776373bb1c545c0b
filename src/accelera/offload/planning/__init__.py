"""Plans of offloaded models: a dry run on shapes, fitted into a budget."""

from __future__ import annotations
