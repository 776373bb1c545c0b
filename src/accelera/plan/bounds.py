"""Least bytes any schedule must move for ``C = A @ B`` through a fast memory of S words.

With dimensions m, k, n the bound used is the largest of

* ``mk + kn + mn``: every operand is read and the result written at least once (compulsory);
* ``2mnk/sqrt(S) - 2S``: Smith, Lowery, Langou, van de Geijn (2019);
* ``2mnk/sqrt(S) + mn``: Kwasniewski et al. (2019), only for ``k > 2 sqrt(S)``: below that a
  panel kept over the full depth moves less, because nothing of C is read back.
"""

from __future__ import annotations

import math


def compulsory_words(m: int, k: int, n: int) -> int:
    """Return the words of A, B and C together."""
    return m * k + k * n + m * n


def matmul_lower_bound_words(m: int, k: int, n: int, fast_words: int) -> float:
    """Return the least words moved between slow memory and a fast one of ``fast_words``.

    >>> matmul_lower_bound_words(100, 100, 100, 1_000_000)
    30000.0
    """
    if 0 in (m, k, n):
        return float(m * n)
    root = math.sqrt(max(fast_words, 1))
    product = 2.0 * m * n * k / root
    bounds = [float(compulsory_words(m, k, n)), product - 2.0 * fast_words]
    if k > 2 * root:
        bounds.append(product + m * n)
    return max(bounds)
