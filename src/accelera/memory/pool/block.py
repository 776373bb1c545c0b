"""What streams through the pool: bytes of one tensor, or of some of its rows, under one id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from accelera.memory.pool.homes import Home
from accelera.memory.pool.moving import Move


@dataclass(eq=False)
class Block:
    """One buffer of the pool and where its bytes live when they are not resident."""

    id: int
    nbytes: int
    role: str = ""
    """What the bytes are, one of ``accelera.trace.ROLES``."""
    name: str = ""
    dtype: str = ""
    home: Home | None = None
    """None until the contents are first saved."""
    filled: bool = False
    """Whether it has contents: some were adopted, attached, or written by a use."""
    leaving: Move | None = None
    """The saving that was begun when it last left."""
    saving: Move | None = None
    """The latest saving into its home."""


class Use(NamedTuple):
    """Use of a block by an operation."""

    block: Block
    read: bool = True
    """Its contents are needed."""
    write: bool = False
    """Its contents change; without ``read`` they are set anew throughout."""
