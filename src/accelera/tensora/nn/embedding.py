"""Rows of a table, by index."""

from __future__ import annotations

from typing import Any

from accelera.tensora import functional
from accelera.tensora.nn import init
from accelera.tensora.nn.linear import made
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.parameter import Parameter


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
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(f"Embedding: padding_idx={padding_idx} of {num_embeddings} rows")
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, max_norm, norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.weight = made((num_embeddings, embedding_dim), device, dtype)
        self.reset_parameters()

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """Return an embedding with this table, which is trained unless `freeze`."""
        rows, columns = embeddings.shape
        found = cls(rows, columns, padding_idx)
        found.weight = Parameter(embeddings.detach(), requires_grad=not freeze)
        return found

    def reset_parameters(self) -> None:
        """Draw the table from normal numbers; the padding row is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.detach()[self.padding_idx] = 0

    def forward(self, input: Any) -> Any:
        """Look indices of any shape up; the result has one axis more, the last."""
        return functional.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
