"""Blocks that a model repeats keep only their inputs; the backward pass computes the rest again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch.utils.checkpoint import checkpoint


@final
class Recomputed:
    """The forward of a module, computed again in the backward pass."""

    def __init__(self, block: torch.nn.Module) -> None:
        self._forward: Callable[..., Any] = block.forward
        self._is_own = "forward" in block.__dict__

    def undo(self, block: torch.nn.Module) -> None:
        """Give ``block`` the forward that it had: its class's, or one of its own."""
        del block.__dict__["forward"]
        if self._is_own:
            block.forward = self._forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's own forward; without gradients, nothing is different."""
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        return checkpoint(self._forward, *args, use_reentrant=False, **kwargs)


def recompute_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Make the ``repeated_blocks`` of ``model`` recomputed; return them."""
    blocks = repeated_blocks(model)
    for block in blocks:
        block.forward = Recomputed(block)
    return blocks


def repeated_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the children of lists and sequences in ``model`` that have one type and weights.

    Raises ValueError when there are none.
    """
    blocks = list(_repeated(model))
    if not blocks:
        raise ValueError(
            f"[offload] activations='recompute': {type(model).__name__} has no list of blocks of one type to "
            "compute again; use activations='offload', or torch.utils.checkpoint where it fits"
        )
    return blocks


def keep_blocks(blocks: list[torch.nn.Module]) -> None:
    """Undo ``recompute_blocks``."""
    for block in blocks:
        recomputed = block.__dict__.get("forward")
        if isinstance(recomputed, Recomputed):
            recomputed.undo(block)


def _repeated(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    children = list(module.children())
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and _alike(children):
        yield from children
        return
    for child in children:
        yield from _repeated(child)


def _alike(children: list[torch.nn.Module]) -> bool:
    kinds = {type(child) for child in children}
    return len(children) > 1 and len(kinds) == 1 and any(True for _ in children[0].parameters())
