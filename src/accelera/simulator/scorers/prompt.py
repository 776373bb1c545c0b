"""What a language model is asked about a trace, and how its answer is read."""

from __future__ import annotations

import json
import re

import numpy as np
from numpy.typing import NDArray

from accelera.errors import ScorerError
from accelera.trace import Trace, stack_distances

MOST_TENSORS = 50
"""How many tensors are put into one prompt at most."""

_QUESTION = """You manage a small, fast memory for a neural network. When it is full, one tensor must leave.
Tensors, one per line: number, role, size in MiB, uses, mean reuse distance (other tensors in between), op.
{lines}
Rank all of them. First the one to evict first: large, and not used again soon. Last the one to keep longest.
Answer with a JSON list of the numbers and nothing else.
"""


def chosen_tensors(trace: Trace) -> NDArray[np.int64]:
    """Return the buffers worth asking about, at most ``MOST_TENSORS``: those with the most bytes accessed."""
    accessed = np.bincount(trace.accessed, minlength=trace.buffer_count) * trace.size_bytes
    return np.argsort(-accessed, kind="stable")[:MOST_TENSORS]


def prompt_for(trace: Trace, tensors: NDArray[np.int64]) -> str:
    """Return the question about ``tensors``."""
    uses = np.bincount(trace.accessed, minlength=trace.buffer_count)
    distance = stack_distances(trace).buffers
    again = distance >= 0
    total = np.bincount(trace.accessed[again], weights=distance[again], minlength=trace.buffer_count)
    mean = total / np.maximum(uses - 1, 1)
    steps = trace.step[trace.is_access]
    first = np.zeros(trace.buffer_count, dtype=np.int64)
    first[trace.accessed[::-1]] = steps[::-1]
    lines = [
        f"{number}, {trace.roles[each] or 'tensor'}, {trace.size_bytes[each] / 2**20:.2f}, "
        f"{uses[each]}, {mean[each]:.1f}, {trace.ops[first[each]] or 'op'}"
        for number, each in enumerate(tensors.tolist())
    ]
    return _QUESTION.format(lines="\n".join(lines))


def parsed_ranking(answer: str, count: int) -> list[int]:
    """Return the numbers of the first JSON list in ``answer``, a permutation of ``range(count)``.

    Raises ScorerError that quotes the answer when it holds no such list.
    """
    found = re.search(r"\[[\s\d,]*\]", answer)
    try:
        ranking: list[int] = json.loads(found.group()) if found else []
    except json.JSONDecodeError:
        ranking = []
    if sorted(ranking) != list(range(count)):
        raise ScorerError(
            f"[scorer] the language model was asked to rank {count} tensors and answered {answer[:200]!r}, "
            f"which is no JSON list of the numbers 0 to {count - 1}; take another model or scorer='replay'"
        )
    return ranking
