"""A small language model in the manner of GPT, and what is done with it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

WORDS, CONTEXT = 600, 16


class Block(nn.Module):
    """Attention and a feed-forward part, both after a normalization."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.before(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.projection(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.narrow(F.gelu(self.wide(self.between(x)))))


class LanguageModel(nn.Module):
    """Embeddings, blocks, and the embedding again as the last layer."""

    def __init__(self, words: int = WORDS, width: int = 32, blocks: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.05)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places[: tokens.shape[-1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_model(**sizes: int) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(**sizes)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def train(
    model: nn.Module,
    steps: int,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    micro_batches: int = 1,
) -> list[float]:
    """Return the losses of ``steps`` steps on sentences that repeat; clips gradients, follows a schedule."""
    torch.manual_seed(1)
    made = optimizer(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(made, steps)
    batches = torch.randint(0, WORDS, (4, 4, CONTEXT + 1))
    losses = []
    for step in range(steps):
        made.zero_grad(set_to_none=step % 2 == 0)
        loss = torch.zeros(())
        for batch in batches[step % 4].chunk(micro_batches):
            part = loss_of(model, batch) / micro_batches
            part.backward()
            loss += part.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def generate(model: nn.Module, tokens: torch.Tensor, count: int) -> list[int]:
    """Return ``count`` tokens more, each the likeliest."""
    model.eval()
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens[None, -CONTEXT:])[0, -1:].argmax(-1)])
    model.train()
    return tokens.tolist()
