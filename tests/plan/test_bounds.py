"""The lower bound: its parts, and that no plan goes below it."""

from __future__ import annotations

import math

import pytest

from accelera.plan._internal import matmul_lower_bound_words
from tests.plan.problems import plan, product


def test_everything_fits_so_only_the_compulsory_traffic_counts() -> None:
    assert matmul_lower_bound_words(10, 20, 30, 10**9) == 10 * 20 + 20 * 30 + 10 * 30


def test_deep_product_adds_the_result_to_the_loads() -> None:
    m = k = n = 1000
    words = 100 * 100
    assert k > 2 * math.sqrt(words)
    assert matmul_lower_bound_words(m, k, n, words) == pytest.approx(2 * m * n * k / 100 + m * n)


def test_shallow_product_has_the_safe_form() -> None:
    m = n = 4000
    k = words_root = 100
    expected = max(m * k + k * n + m * n, 2 * m * n * k / words_root - 2 * words_root**2)
    assert matmul_lower_bound_words(m, k, n, words_root**2) == pytest.approx(expected)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_an_empty_product_only_writes(m: int, k: int, n: int) -> None:
    assert matmul_lower_bound_words(m, k, n, 100) == m * n


@pytest.mark.parametrize("ratio", [1.2, 2.0, 3.0, 5.0])
def test_no_plan_moves_less_than_the_bound(ratio: float) -> None:
    n = 4096
    planned = plan(product(n, n, n), int((n / ratio) ** 2 * 4))
    assert planned.moved_bytes >= planned.lower_bound_bytes
    assert planned.lower_bound_bytes >= planned.compulsory_bytes
