"""Tensors whose bytes are in the pool: what they hold, how they are made, replaced and copied."""
