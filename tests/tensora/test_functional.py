"""Functions of neural networks: values and gradients as PyTorch's, and what they refuse."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch

import accelera.tensora as ts
from accelera.errors import ArgumentError
from accelera.tensora import functional as F  # noqa: N812

RANDOM = np.random.default_rng(0)
Case = tuple[str, tuple[Any, ...], dict[str, Any]]


def normal(*shape: int) -> Any:
    return RANDOM.normal(size=shape)


def away(*shape: int) -> Any:
    """Numbers that keep their distance from each other and from the kinks at 0, 0.5, 1, 3 and 6."""
    n = int(np.prod(shape))
    return RANDOM.permutation((np.arange(n) - n / 2 + 0.317) * 0.237).reshape(shape)


def chances(*shape: int) -> Any:
    return RANDOM.uniform(0.1, 0.9, size=shape)


def signs(*shape: int) -> Any:
    return np.sign(normal(*shape))


X, Y = away(4, 6), away(4, 6)[::-1].copy()
IMAGE = normal(3, 4, 5, 2)
CLASSES = np.array([2, 0, 5, 1])
PIXELS = RANDOM.integers(0, 4, (3, 5, 2))
PIXELS[0, 0] = -100
OF_ONE_TENSOR = """
relu relu6 sigmoid tanh silu mish softplus elu celu selu gelu leaky_relu hardtanh hardsigmoid hardswish
hardshrink softshrink softsign tanhshrink logsigmoid glu
"""
ACTIVATIONS: list[Case] = [
    *((name, (X,), {}) for name in OF_ONE_TENSOR.split()),
    ("gelu", (X,), {"approximate": "tanh"}),
    ("softplus", (X,), {"beta": 2.0, "threshold": 1.0}),
    ("elu", (X,), {"alpha": 0.5}),
    ("celu", (X,), {"alpha": 0.5}),
    ("leaky_relu", (X,), {"negative_slope": 0.2}),
    ("hardtanh", (X,), {"min_val": -0.4, "max_val": 1.7}),
    ("hardshrink", (X,), {"lambd": 0.9}),
    ("softshrink", (X,), {"lambd": 0.9}),
    ("threshold", (X, 0.4, -3.0), {}),
    ("rrelu", (X,), {}),
    ("glu", (X,), {"dim": 0}),
    ("prelu", (X, chances(6)), {}),
    ("prelu", (X, chances(1)), {}),
    ("softmax", (X,), {"dim": -1}),
    ("softmax", (IMAGE,), {"dim": 1}),
    ("log_softmax", (IMAGE,), {"dim": 0}),
    ("softmin", (X,), {"dim": 1}),
]
LAYERS: list[Case] = [
    ("linear", (normal(2, 3, 5), normal(4, 5), normal(4)), {}),
    ("linear", (normal(5), normal(4, 5)), {}),
    ("bilinear", (normal(2, 3, 4), normal(2, 3, 5), normal(6, 4, 5), normal(6)), {}),
    ("embedding", (CLASSES, normal(6, 3)), {}),
    ("embedding", (CLASSES, normal(6, 3)), {"padding_idx": 2}),
    ("normalize", (normal(3, 4),), {}),
    ("normalize", (normal(3, 4),), {"p": 3.0, "dim": 0}),
    ("normalize", (away(3, 4),), {"p": float("inf")}),
    ("normalize", (X,), {"p": 0.0}),
    ("cosine_similarity", (normal(3, 4), normal(3, 4)), {}),
    ("cosine_similarity", (X[None], X[:, None]), {"dim": -2}),
    ("pairwise_distance", (normal(3, 4), normal(3, 4)), {"keepdim": True}),
    ("pairwise_distance", (normal(3, 4), normal(3, 4)), {"p": 1.0}),
    ("pairwise_distance", (normal(3, 4), normal(3, 4)), {"p": float("-inf")}),
    ("normalize", (normal(3, 4),), {"p": float("-inf")}),
    ("pad", (IMAGE, (1, 2, -1, 3)), {"value": 0.5}),
    ("pad", (IMAGE, (1, 1, 3, 2)), {"mode": "reflect"}),
    ("pad", (IMAGE, (2, 1, 0, 7)), {"mode": "replicate"}),
    ("pad", (IMAGE, (2, 1, 5, 0)), {"mode": "circular"}),
    ("pad", (X[None], (-1, 2)), {"mode": "circular"}),
    ("pixel_shuffle", (normal(2, 8, 3, 2), 2), {}),
    ("pixel_unshuffle", (normal(2, 3, 4, 6), 2), {}),
    ("layer_norm", (normal(3, 4, 5), (4, 5), normal(4, 5), normal(4, 5)), {}),
    ("layer_norm", (normal(3, 4, 5), (5,)), {"eps": 0.1}),
    ("rms_norm", (normal(3, 4, 5), (5,), normal(5)), {}),
    ("group_norm", (IMAGE, 2, normal(4), normal(4)), {}),
    ("batch_norm", (IMAGE, normal(4), chances(4), normal(4), normal(4)), {}),
    ("batch_norm", (normal(5, 4), None, None, normal(4), normal(4), True), {}),
    ("batch_norm", (IMAGE, None, None), {"training": True, "eps": 0.1}),
    ("instance_norm", (IMAGE,), {"weight": normal(4), "bias": normal(4)}),
]
POINT = (X, Y)
LOSSES: list[Case] = [
    *((name, POINT, {}) for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")),
    ("smooth_l1_loss", POINT, {"beta": 0.3}),
    ("smooth_l1_loss", POINT, {"beta": 0.0}),
    ("huber_loss", POINT, {"delta": 0.3}),
    ("poisson_nll_loss", (X, chances(4, 6) * 5), {"full": True}),
    ("poisson_nll_loss", (chances(4, 6), chances(4, 6) * 5), {"log_input": False}),
    ("gaussian_nll_loss", (X, Y, chances(4, 6)), {"full": True}),
    ("gaussian_nll_loss", (X, Y, chances(4)), {}),
    ("binary_cross_entropy", (chances(4, 6), chances(4, 6)), {"weight": chances(6)}),
    (
        "binary_cross_entropy_with_logits",
        (X, chances(4, 6)),
        {"weight": chances(6), "pos_weight": chances(6)},
    ),
    ("kl_div", (X, chances(4, 6)), {}),
    ("kl_div", (X, X[::-1].copy()), {"log_target": True}),
    ("soft_margin_loss", (X, signs(4, 6)), {}),
    ("hinge_embedding_loss", (X, signs(4, 6)), {"margin": 0.7}),
    ("cosine_embedding_loss", (normal(4, 6), normal(4, 6), signs(4)), {"margin": 0.1}),
    ("margin_ranking_loss", (X, Y, signs(4, 6)), {"margin": 0.05}),
    ("triplet_margin_loss", (normal(4, 6), normal(4, 6), normal(4, 6)), {"margin": 2.0, "swap": True}),
    ("triplet_margin_with_distance_loss", (normal(4, 6), normal(4, 6), normal(4, 6)), {}),
    ("multi_margin_loss", (X, CLASSES), {"p": 2, "weight": chances(6)}),
    ("multi_margin_loss", (X, CLASSES), {"margin": 0.4}),
    ("multilabel_margin_loss", (X, np.array([[1, 3, -1, 2, 0, 0]] * 4)), {}),
    ("multilabel_soft_margin_loss", (X, (X > 0) * 1.0), {"weight": chances(6)}),
    ("multi_margin_loss", (X[0, :1].reshape(()), CLASSES[0] * 0), {}),
    ("nll_loss", (X, CLASSES), {"weight": chances(6)}),
    ("nll_loss", (IMAGE, PIXELS), {}),
    ("cross_entropy", (X, CLASSES), {}),
    ("cross_entropy", (X[0], CLASSES[0]), {}),
    ("cross_entropy", (X, CLASSES), {"weight": chances(6), "label_smoothing": 0.1, "ignore_index": 0}),
    ("cross_entropy", (IMAGE, PIXELS), {"weight": chances(4)}),
    ("cross_entropy", (X, chances(4, 6)), {"weight": chances(6), "label_smoothing": 0.1}),
]
REDUCED = [
    (name, args, options | {"reduction": reduction})
    for name, args, options in LOSSES
    for reduction in ("mean", "sum", "none", *(["batchmean"] if name == "kl_div" else []))
]


def calls(case: Case, dtype: str = "float64") -> tuple[Any, Any, list[Any], list[Any]]:
    """The same call in both libraries, and the arguments that get gradients."""
    name, args, options = case
    found: list[list[Any]] = []
    for make, library in ((ours, F), (theirs, torch.nn.functional)):
        leaves: list[Any] = []
        given = [make(each, dtype, leaves, may_grow(name, i)) for i, each in enumerate(args)]
        named = {key: make(each, dtype, leaves, key == "bias") for key, each in options.items()}
        found.append([getattr(library, name), given, named, leaves])
    (a, a_args, a_options, a_leaves), (b, b_args, b_options, b_leaves) = found
    return (lambda: a(*a_args, **a_options)), (lambda: b(*b_args, **b_options)), a_leaves, b_leaves


def may_grow(name: str, i: int) -> bool:
    """Whether an argument may get a gradient: targets and running statistics do not."""
    return not (i == 1 and name in {case[0] for case in LOSSES} - {"triplet_margin_loss"}) and not (
        name == "batch_norm" and i in (1, 2)
    )


def ours(value: Any, dtype: str, leaves: list[Any], grows: bool) -> Any:
    if not isinstance(value, (np.ndarray, np.integer)):
        return value
    made = ts.asarray(value)
    if made.dtype == ts.float64:
        made = made.to(dtype).requires_grad_(grows)
        leaves += [made] if grows else []
    return made


def theirs(value: Any, dtype: str, leaves: list[Any], grows: bool) -> Any:
    if not isinstance(value, (np.ndarray, np.integer)):
        return value
    made = torch.tensor(value)
    if made.dtype == torch.float64:
        made = made.to(getattr(torch, dtype)).requires_grad_(grows)
        leaves += [made] if grows else []
    return made


def near(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    assert tuple(found.shape) == tuple(expected.shape)
    np.testing.assert_allclose(
        found.detach().to("float64").numpy(),
        expected.detach().double().numpy(force=True),
        rtol=tolerance,
        atol=tolerance,
    )


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("case", [*ACTIVATIONS, *LAYERS, *REDUCED], ids=lambda case: case[0])
def test_values_and_gradients_are_pytorchs(case: Case) -> None:
    call, other, leaves, others = calls(case)
    result, expected = call(), other()
    near(result, expected)
    weights = np.random.default_rng(1).normal(size=tuple(expected.shape))
    first = ts.grad(ts.sum(result * ts.asarray(weights)), leaves, create_graph=True, allow_unused=True)
    second = torch.autograd.grad(
        (expected * torch.tensor(weights)).sum(), others, create_graph=True, allow_unused=True
    )
    assert [x is None for x in first] == [x is None for x in second]
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None]
    for a, b in pairs:
        near(a, b, 1e-7 if case[0] == "hardsigmoid" else 1e-9)  # torch has 1/6 as a float
    curves = [sum((x * x * x).sum() for x in side) for side in zip(*pairs, strict=True)] if pairs else []
    if not curves or not curves[1].requires_grad:
        return
    again = ts.grad(curves[0], leaves, allow_unused=True) if curves[0].requires_grad else [None] * len(leaves)
    try:
        expected_again = torch.autograd.grad(curves[1], others, allow_unused=True)
    except RuntimeError as error:
        assert "is not implemented" in str(error)  # noqa: PT017 - of PyTorch's own
        return
    for a, b in zip(again, expected_again, strict=True):
        if a is None or b is None:
            for each in (a, b):
                assert each is None or np.abs(each.detach().numpy()).max(initial=0) == 0
        else:
            near(a, b, 1e-8)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-4), ("float16", 3e-2), ("bfloat16", 0.2)])
@pytest.mark.parametrize("case", [*ACTIVATIONS, *LAYERS, *REDUCED[::3]], ids=lambda case: case[0])
def test_narrow_types(case: Case, dtype: str, tolerance: float) -> None:
    call, other, leaves, others = calls(case, dtype)
    has_kernel = True
    try:
        expected = other()
    except RuntimeError:  # torch has no kernel for this type
        has_kernel = False
        _, other, _, others = calls(case, "float32")
        expected = other()
    result = call()
    if dtype == "float32" or (has_kernel and case[0] in {each[0] for each in ACTIVATIONS}):
        assert str(result.dtype).removeprefix("tensora.") == str(expected.dtype).removeprefix("torch.")
    near(result, expected, tolerance)
    with contextlib.suppress(RuntimeError):
        expected.sum().backward()
        ts.sum(result).backward()
        for a, b in zip(leaves, others, strict=True):
            if a.grad is not None and b.grad is not None:
                near(a.grad, b.grad, tolerance * 3)


# --- statistics, random numbers ---------------------------------------------------------------------------


def test_instance_norm_needs_both_statistics_or_neither() -> None:
    images = ts.ones((2, 3, 4, 4))
    with pytest.raises(ArgumentError, match="both"):
        F.instance_norm(images, running_mean=ts.zeros(3))


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_running_statistics_move(name: str) -> None:
    mean, variance = np.zeros(4), np.ones(4)
    a = [ts.asarray(mean.copy()), ts.asarray(variance.copy())]
    b = [torch.tensor(mean), torch.tensor(variance)]
    for _ in range(2):
        near(
            getattr(F, name)(ts.asarray(IMAGE), *a, None, None, True, 0.3),
            getattr(torch.nn.functional, name)(torch.tensor(IMAGE), *b, None, None, True, 0.3),
        )
    near(a[0], b[0])
    near(a[1], b[1])
    near(
        getattr(F, name)(ts.asarray(IMAGE), *a, None, None, False),
        getattr(torch.nn.functional, name)(torch.tensor(IMAGE), *b, None, None, False),
    )


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e4])
def test_statistics_of_rows_far_from_zero(offset: float) -> None:
    rows = (normal(3, 2000) + offset).astype(np.float32)
    exact = rows.astype(np.float64)
    expected = (exact - exact.mean(1, keepdims=True)) / exact.std(1, keepdims=True)
    found = F.layer_norm(ts.asarray(rows), 2000, eps=0.0).numpy()
    np.testing.assert_allclose(found, expected, atol=max(2e-6, offset * 2e-7))


def test_softmax_of_infinities_and_nan() -> None:
    inf, nan = np.inf, np.nan
    rows = np.array([[0, -inf, 1], [-inf] * 3, [inf, 0, 1], [nan, 0, 1], [1e30, -1e30, 0]], np.float32)
    for name in ("softmax", "log_softmax"):
        expected = getattr(torch.nn.functional, name)(torch.tensor(rows), -1).numpy()
        np.testing.assert_allclose(getattr(F, name)(ts.asarray(rows), -1).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("n", [0, 1, 3, 17, 1023, 1025, 5000])
def test_softmax_of_any_length(n: int) -> None:
    rows = normal(3, n).astype(np.float32) * 10
    found = F.softmax(ts.asarray(rows), -1).numpy()
    expected = torch.softmax(torch.tensor(rows).double(), -1).numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-30)
    assert F.softmax(ts.asarray(2.0), 0).item() == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_weights_do_not_depend_on_threads(threads: int) -> None:
    x = np.random.default_rng(3).normal(size=(3000, 40)).astype(np.float32)
    grads = []
    for n in (threads, 4):
        before = ts.get_num_threads()
        ts.set_num_threads(n)
        try:
            weight = ts.ones(40).requires_grad_()
            ts.sum(ts.square(F.layer_norm(ts.asarray(x), 40, weight))).backward()
            grads.append(weight.grad.tolist())
        finally:
            ts.set_num_threads(before)
    assert grads[0] == grads[1]


def test_dropout() -> None:
    ts.random.manual_seed(0)
    x = ts.ones((100, 100)).requires_grad_()
    y = F.dropout(x, 0.3)
    zeros = float((y == 0).sum().item()) / y.size
    assert abs(zeros - 0.3) < 0.02
    assert y.detach().max().item() == pytest.approx(1 / 0.7)
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()
    assert F.dropout(x, 0.3, training=False) is x
    assert F.dropout(x, 1.0).sum().item() == 0


def test_gumbel_softmax_and_rrelu() -> None:
    ts.random.manual_seed(0)
    logits = ts.asarray(np.log([[0.1, 0.2, 0.7]] * 5000)).requires_grad_()
    hard = F.gumbel_softmax(logits, hard=True)
    assert hard.sum(1).tolist() == pytest.approx([1.0] * 5000)
    assert hard.mean(0).tolist() == pytest.approx([0.1, 0.2, 0.7], abs=0.03)
    (hard * ts.asarray([1.0, 2, 3])).sum().backward()
    assert logits.grad.abs().max().item() > 0
    slopes = -F.rrelu(-ts.ones(1000), 0.1, 0.3, training=True)
    assert 0.1 <= slopes.min().item() < slopes.max().item() < 0.3


def test_one_hot() -> None:
    assert F.one_hot(ts.asarray([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert F.one_hot(ts.asarray([[1]]), 4).shape == (1, 1, 4)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: F.softmax(x.to(ts.int64), -1), TypeError, "not defined for int64"),
        (lambda x: F.softmax(x, 2), IndexError, "axis 2"),
        (lambda x: F.linear(x, ts.ones((2, 5))), ValueError, r"\[linear\] a weight of shape"),
        (lambda x: F.linear(x, ts.ones((2, 6)), ts.ones(3)), ValueError, "bias of shape"),
        (lambda x: F.layer_norm(x, (5,)), ValueError, "normalized shape"),
        (lambda x: F.layer_norm(x, (6,), ts.ones(5)), ValueError, "weight or bias"),
        (lambda x: F.cross_entropy(x, ts.asarray([0, 1, 6, 0])), IndexError, "class 6 at 2 of 6"),
        (lambda x: F.cross_entropy(x, ts.asarray([0, 1])), ValueError, "classes of shape"),
        (lambda x: F.cross_entropy(x, ts.asarray([True] * 4)), TypeError, "integers or prob"),
        (lambda x: F.cross_entropy(x.to(ts.int64), ts.asarray([0] * 4)), TypeError, "logits"),
        (lambda x: F.cross_entropy(x, ts.asarray([0] * 4), ts.ones(5)), ValueError, "weights of"),
        (lambda x: F.nll_loss(x, ts.asarray([0, 1, 6, 0])), IndexError, "0 to 5"),
        (lambda x: F.mse_loss(x, x[0]), ValueError, r"\[mse_loss\] an input"),
        (lambda x: F.mse_loss(x, x, reduction="all"), ValueError, "'mean', 'sum'"),
        (lambda x: F.binary_cross_entropy(x + 9, x), ValueError, "probabilities"),
        (lambda x: F.batch_norm(x[:1], None, None, training=True), ValueError, "more than one"),
        (lambda x: F.batch_norm(x, None, None), ValueError, "running_mean"),
        (lambda x: F.group_norm(x, 4), ValueError, "divisor"),
        (lambda x: F.embedding(ts.asarray([-1]), x), IndexError, "negative"),
        (lambda x: F.embedding(ts.asarray([4]), x), IndexError, "4 elements"),
        (lambda x: F.one_hot(ts.asarray([3]), 3), ValueError, "from 0 to 2"),
        (lambda x: F.dropout(x, 1.5), ValueError, "p=1.5"),
        (lambda x: F.pad(x, (1,)), ValueError, "a pair"),
        (lambda x: F.pad(x, (6, 0), mode="reflect"), ValueError, "allows 5"),
        (lambda x: F.glu(x[:, :5]), ValueError, "even"),
        (lambda x: F.prelu(x, ts.ones(3)), ValueError, "6 channels"),
        (lambda x: F.pixel_shuffle(ts.ones((3, 2, 2)), 2), ValueError, "multiple of 4"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(ts.asarray(X))


def test_of_no_rows() -> None:
    x = ts.zeros((0, 5)).requires_grad_()
    weight, bias = ts.ones((3, 5)).requires_grad_(), ts.ones(5).requires_grad_()
    y = F.linear(F.layer_norm(F.softmax(x), 5, bias, bias), weight)
    y.sum().backward()
    assert (y.shape, x.grad.shape) == ((0, 3), (0, 5))
    assert weight.grad.tolist() == [[0.0] * 5] * 3
    loss = F.cross_entropy(x, ts.zeros(0, dtype=ts.int64))
    assert np.isnan(loss.item())


def test_of_an_empty_batch() -> None:
    weight = ts.ones(5).requires_grad_()
    y = F.batch_norm(ts.zeros((0, 5)), None, None, weight, training=True)
    y.sum().backward()
    assert (y.shape, weight.grad.tolist()) == ((0, 5), [0.0] * 5)


@pytest.mark.parametrize(
    "options",
    [
        {"padding_idx": -2},
        {"max_norm": 1.0},
        {"max_norm": 0.7, "norm_type": 1.0},
        {"scale_grad_by_freq": True, "padding_idx": 0},
    ],
)
def test_options_of_embedding(options: dict[str, Any]) -> None:
    rows, values = np.array([[0, 2], [2, 3]]), X.copy()
    table, expected_table = ts.asarray(values.copy()).requires_grad_(), torch.tensor(values).requires_grad_()
    found = F.embedding(ts.asarray(rows), table, **options)
    expected = torch.nn.functional.embedding(torch.tensor(rows), expected_table, **options)
    found.square().sum().backward()
    expected.square().sum().backward()
    near(found, expected)
    near(table, expected_table)
    near(table.grad, expected_table.grad)


def test_complex_silu() -> None:
    values = X + 0.3j * X[::-1]
    expected = torch.nn.functional.silu(torch.tensor(values)).numpy()
    np.testing.assert_allclose(F.silu(ts.asarray(values)).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, float("inf")])
def test_zeros_have_the_gradient_of_pytorch_in_normalize(p: float) -> None:
    array = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, -2.0], [0.0, 0.0, 1e-13]])
    x, t = ts.asarray(array), torch.tensor(array, requires_grad=True)
    x.requires_grad = True
    weights = np.arange(9.0).reshape(3, 3)
    (F.normalize(x, p) * ts.asarray(weights)).sum().backward()
    (torch.nn.functional.normalize(t, p) * torch.tensor(weights)).sum().backward()
    assert t.grad is not None
    np.testing.assert_allclose(np.asarray(x.grad), t.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "median"}, "mode='median'"),
        ({"mode": "max", "scale_grad_by_freq": True}, "scale_grad_by_freq with mode='max'"),
        ({"mode": "mean", "per_sample_weights": [1.0, 2.0, 3.0]}, "per_sample_weights with mode='mean'"),
        ({"per_sample_weights": [1.0]}, "per_sample_weights of shape"),
        ({"offsets": [1, 2]}, "offsets=\\[1, 2\\]"),
        ({"offsets": [0, 4]}, "offsets=\\[0, 4\\] for 3 indices"),
        ({"offsets": None}, "without offsets"),
    ],
)
def test_bags_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    options = {"mode": "sum", "offsets": [0, 2]} | change
    tensors: dict[str, Any] = {
        name: ts.tensor(value) if isinstance(value, list) else value for name, value in options.items()
    }
    with pytest.raises(ValueError, match=words):
        F.embedding_bag(ts.tensor([0, 1, 1]), ts.ones((3, 2)), **tensors)


def test_bags_refuse_rows_that_are_not_there() -> None:
    for row in (-1, 3):
        with pytest.raises(IndexError):
            F.embedding_bag(ts.tensor([[0, row]]), ts.ones((3, 2)))


def test_local_response_norm_needs_an_axis_behind_the_channels() -> None:
    with pytest.raises(ValueError, match="local_response_norm"):
        F.local_response_norm(ts.ones((2, 3)), 2)
