"""Rows of a table, by index, one by one or a bag of them at once."""

from __future__ import annotations

from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora import functional
from accelera.tensora.core import Tensor
from accelera.tensora.nn import init
from accelera.tensora.nn.linear import made
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.parameter import Parameter
from accelera.tensora.typing import Device, DTypeLike


def _row(name: str, index: int | None, rows: int) -> int | None:
    """A row counted from the front."""
    if index is None:
        return None
    if not -rows <= index < rows:
        raise ArgumentError(f"[{name}] padding_idx={index} of {rows} rows")
    return index % rows


def _draw_table(module: Any) -> None:
    init.normal_(module.weight)
    if module.padding_idx is not None:
        module.weight.detach()[module.padding_idx] = 0


class Embedding(Module):
    """Table whose rows are looked up by index.

    Parameters
    ----------
    num_embeddings, embedding_dim
        Rows and columns of the table.
    padding_idx
        Row that is zero at first and is not trained.
    max_norm, norm_type
        Rows of a greater norm are scaled to this one when they are looked up, in place.
    scale_grad_by_freq
        Whether gradients are divided by how often their row was looked up.
    device, dtype
        Of the table.

    Raises
    ------
    ValueError
        If `padding_idx` is no row.

    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        *,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        padding_idx = _row(type(self).__name__, padding_idx, num_embeddings)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, max_norm, norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.weight = made((num_embeddings, embedding_dim), device, dtype)
        self.reset_parameters()

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """Return an embedding with this table, which is trained unless `freeze`."""
        rows, columns = embeddings.shape
        found = cls(rows, columns, padding_idx)
        found.weight = Parameter(embeddings.detach(), requires_grad=not freeze)
        return found

    def reset_parameters(self) -> None:
        """Draw the table from normal numbers; the padding row is zero."""
        _draw_table(self)

    def forward(self, input: Tensor) -> Tensor:
        """Look indices of any shape up; the result has one axis more, the last."""
        return functional.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class EmbeddingBag(Module):
    """Table of which the sum, mean or maximum of each bag of rows is looked up.

    Parameters
    ----------
    num_embeddings, embedding_dim
        Rows and columns of the table.
    max_norm, norm_type
        Rows of a greater norm are scaled to this one when they are looked up, in place.
    scale_grad_by_freq
        Whether gradients are divided by how often their row was looked up.
    mode
        ``"sum"``, ``"mean"`` or ``"max"``.
    sparse
        Taken for PyTorch's sake; gradients are dense.
    include_last_offset
        Whether offsets end with the number of indices.
    padding_idx
        Row that is zero at first, counts in no bag and is not trained.
    device, dtype
        Of the table.

    Raises
    ------
    ValueError
        If `padding_idx` is no row.

    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = _row(type(self).__name__, padding_idx, num_embeddings)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.mode, self.sparse = scale_grad_by_freq, mode, sparse
        self.include_last_offset = include_last_offset
        self.weight = made((num_embeddings, embedding_dim), device, dtype)
        self.reset_parameters()

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **options: Any) -> EmbeddingBag:
        """Return an embedding with this table, which is trained unless `freeze`."""
        rows, width = embeddings.shape
        found = cls(rows, width, **options)
        found.weight = Parameter(embeddings.detach(), requires_grad=not freeze)
        return found

    def reset_parameters(self) -> None:
        """Draw the table from normal numbers; the padding row is zero."""
        _draw_table(self)

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Look the rows of bags up: of (bags, n), or of a vector with the place where each begins."""
        return functional.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}{padding}"
