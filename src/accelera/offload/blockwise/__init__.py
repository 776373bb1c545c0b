"""Operators on tensors in several blocks, which may be bigger than the cache."""

from accelera.offload.blockwise import autograd, elementwise, embedding, matmul, reduce
from accelera.offload.blockwise.run import gathered, run

__all__ = ["autograd", "elementwise", "embedding", "gathered", "matmul", "reduce", "run"]
