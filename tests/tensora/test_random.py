"""Random numbers: Philox's published vectors, distributions, and independence of threads."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import stats

from accelera.tensora import random
from accelera.tensora.core import native
from tests.threads import run_in_threads

# counter, key, result: philox4x32 with 10 rounds in kat_vectors of Random123, the authors' library.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def array(x: Any) -> Any:
    if x.dtype.name in ("float16", "bfloat16"):
        x = native.cast(x, native.dtype.float32)
    return np.asarray(x)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_published_words(counter: list[int], key: list[int], result: list[int]) -> None:
    assert native.philox(counter, key) == result


def test_words_become_numbers_as_documented() -> None:
    """Element i of draw d: word i % 4 of the block (i // 4, d) under the seed, its upper 24 bits."""
    generator = random.Generator(0x0123456789ABCDEF)
    generator.uniform((2,))
    found = array(generator.uniform((6,), "float32"))
    words = [native.philox([block, 0, 1, 0], [0x89ABCDEF, 0x01234567]) for block in (0, 1)]
    expected = [(word >> 8) / 2**24 for block in words for word in block][:6]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


# --- distributions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_and_normal_numbers_pass_kolmogorov_and_smirnov(dtype: str) -> None:
    generator = random.Generator(2024)
    uniform = array(generator.uniform((20000,), dtype, -2.0, 3.0)).astype(np.float64)
    assert stats.kstest(uniform, stats.uniform(-2, 5).cdf).pvalue > 0.01
    normal = array(generator.normal((20000,), dtype, 1.0, 2.0)).astype(np.float64)
    assert stats.kstest(normal, stats.norm(1, 2).cdf).pvalue > 0.01
    pairs = normal.reshape(-1, 2)
    assert abs(stats.pearsonr(pairs[:, 0], pairs[:, 1]).statistic) < 0.03
    assert abs(stats.pearsonr(pairs[:, 0] ** 2, pairs[:, 1] ** 2).statistic) < 0.03


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_numbers_stay_below_the_end(dtype: str) -> None:
    generator = random.Generator(5)
    for low, high in ((0.0, 1.0), (1.0, 1.0 + 2**-6), (-3.0, 3.0), (-1.0, 0.0), (1000.0, 1008.0)):
        drawn = generator.uniform((50000,), dtype, low, high)
        assert drawn.dtype.name == dtype
        values = array(drawn)
        assert values.min() >= low
        assert values.max() < high
    assert array(generator.uniform((3,), dtype, 2.0, 2.0)).tolist() == [2.0] * 3


@pytest.mark.parametrize("dtype", FLOATS)
def test_moments_of_every_type(dtype: str) -> None:
    generator = random.Generator(6)
    assert array(generator.uniform((40000,), dtype)).mean() == pytest.approx(0.5, abs=0.01)
    normal = array(generator.normal((40000,), dtype))
    assert normal.mean() == pytest.approx(0, abs=0.02)
    assert normal.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_equally_likely(dtype: str) -> None:
    generator = random.Generator(7)
    low = 0 if dtype.startswith("u") else -3
    drawn = generator.integers(low, 7, (20000,), dtype)
    assert drawn.dtype.name == dtype
    values, counts = np.unique(array(drawn), return_counts=True)
    assert values.tolist() == list(range(low, 7))
    assert stats.chisquare(counts).pvalue > 0.01


def test_integers_of_large_ranges_have_no_bias() -> None:
    """Of three quarters of all words, a plain remainder would give the lower third twice as often."""
    generator = random.Generator(8)
    for bits in (32, 64):
        extent = 3 << (bits - 2)
        values = array(generator.integers(0, extent, (20000,), "uint64")).astype(np.float64)
        assert stats.kstest(values, stats.uniform(0, float(extent)).cdf).pvalue > 0.01
    whole = array(generator.integers(0, 1 << 64, (1000,), "uint64"))
    assert stats.kstest(whole.astype(np.float64), stats.uniform(0, 2.0**64).cdf).pvalue > 0.01
    signed = array(generator.integers(-(1 << 63), 1 << 63, (1000,)))
    assert (signed < 0).any()
    assert (signed > 0).any()


def test_permutations_are_equally_likely() -> None:
    generator = random.Generator(9)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(2400):
        order = tuple(generator.permutation(4).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 0.01
    assert sorted(generator.permutation(1000).tolist()) == list(range(1000))
    assert generator.permutation(0).shape == (0,)


def test_bernoulli_numbers_are_true_as_often_as_asked() -> None:
    generator = random.Generator(10)
    assert array(generator.bernoulli(0.3, (20000,))).mean() == pytest.approx(0.3, abs=0.01)
    chances = native.asarray([0.0, 0.25, 1.0])
    drawn = generator.bernoulli(chances, (10000, 3))
    assert drawn.dtype.name == "bool"
    np.testing.assert_allclose(array(drawn).mean(0), [0, 0.25, 1], atol=0.02)
    assert generator.bernoulli(chances).shape == (3,)


# --- generators -------------------------------------------------------------------------------------------

DRAWS = [
    lambda g: g.uniform((70001,), "float32"),
    lambda g: g.uniform((70001,), "float64"),
    lambda g: g.normal((70001,), "float32"),
    lambda g: g.normal((70001,), "float64"),
    lambda g: g.integers(3 << 30, shape=(70001,)),
    lambda g: g.integers(3 << 62, shape=(70001,), dtype="uint64"),
    lambda g: g.permutation(1000),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_numbers_do_not_depend_on_threads(draw: Any) -> None:
    before = native.thread_count()
    try:
        found = []
        for threads in (1, 2, 5):
            native.set_thread_count(threads)
            found.append(array(draw(random.Generator(11))))
    finally:
        native.set_thread_count(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("draw", DRAWS)
def test_each_seed_and_each_draw_has_numbers_of_its_own(draw: Any) -> None:
    generator = random.Generator(12)
    first, second = array(draw(generator)), array(draw(generator))
    other = array(draw(random.Generator(13)))
    assert (first != second).mean() > 0.9
    assert (first != other).mean() > 0.9
    np.testing.assert_array_equal(first, array(draw(random.Generator(12))))


def test_a_shorter_draw_is_the_beginning_of_a_longer_one() -> None:
    long, short = (array(random.Generator(14).normal((n,))) for n in (103, 7))
    np.testing.assert_array_equal(long[:7], short)


def test_states_are_kept_and_restored() -> None:
    generator = random.Generator(15)
    generator.uniform((3,))
    state = generator.state
    assert state == (15, 1)
    copies = [pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator), random.Generator(0)]
    copies[2].state = state
    expected = generator.normal((5,)).tolist()
    for each in copies:
        assert each.normal((5,)).tolist() == expected
    assert repr(generator) == "Generator(seed=15, draws=2)"
    assert random.Generator(-1).seed == 2**64 - 1
    assert random.Generator().seed != random.Generator().seed
    with pytest.raises(ValueError, match=r"Generator\.state"):
        generator.state = (-1, 0)


def test_threads_never_make_the_same_draw() -> None:
    generator = random.Generator(16)
    drawn: list[int] = []

    def work() -> None:
        for _ in range(200):
            drawn.append(generator.integers(1 << 62).item())

    run_in_threads(*[work] * 4)
    assert len(set(drawn)) == 800
    assert generator.state == (16, 800)


def test_functions_of_the_module_draw_from_the_default_generator() -> None:
    random.manual_seed(17)
    found = [
        random.rand(2, 3),
        random.randn(4, dtype="float64"),
        random.randint(5, shape=(6,)),
        random.randperm(7),
    ]
    own = random.Generator(17)
    expected = [
        own.uniform((2, 3)),
        own.normal((4,), "float64"),
        own.integers(5, shape=(6,)),
        own.permutation(7),
    ]
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(array(a), array(b))
    state = random.default_generator.state
    assert random.rand(generator=own).shape == ()
    assert random.default_generator.state == state


def test_arguments_that_do_not_fit_are_named() -> None:
    generator = random.Generator(18)
    for call, words in (
        (lambda: generator.uniform((2,), low=1.0, high=0.0), r"\[uniform\] low 1 and high 0"),
        (lambda: generator.uniform((2,), high=float("inf")), r"\[uniform\] low 0 and high inf"),
        (lambda: generator.uniform((-2,)), "extents must not be negative"),
        (lambda: generator.normal((2,), std=-1.0), "standard deviation of -1"),
        (lambda: generator.integers(3, 3), r"\[integers\] from 3 to below 3"),
        (lambda: generator.integers(0, 300, dtype="uint8"), "between 0 and 256"),
        (lambda: generator.permutation(-1), r"\[permutation\] n=-1"),
        (lambda: generator.bernoulli(1.5), r"\[bernoulli\] probabilities"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    for wrong in (
        lambda: generator.uniform((2,), "int32"),
        lambda: generator.normal((2,), "complex64"),
        lambda: generator.integers(3, dtype="float32"),
    ):
        with pytest.raises(TypeError, match="elements of type"):
            wrong()
