"""Into how large blocks tensors are cut."""

from __future__ import annotations

BLOCKS = {False: 4, True: 8}
"""So many of the largest blocks fit the pool: a product uses three, an optimizer's step up to five."""
FINER = (1, 2, 4)
"""Factors by which blocks are made smaller while a plan does not work out."""


def block_bytes_of(capacity_bytes: int, *, train: bool, finer: int = 1) -> int:
    """Return the most bytes of one block in a pool of ``capacity_bytes``."""
    return max(1, capacity_bytes // (BLOCKS[train] * finer))
