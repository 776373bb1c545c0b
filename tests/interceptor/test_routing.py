"""Every operator by every route against PyTorch itself: values, gradients, forms, element types."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import accelera
from accelera.interceptor.config import Route
from tests.interceptor.forcing import counted, forced

ROUTES = ("chunked", "spilled")
M, K, N = 37, 23, 41

Function = Callable[..., torch.Tensor]

PRODUCTS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((M, K), (K, N))),
    "matmul": (torch.matmul, ((3, M, K), (K, N))),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=-3), ((N,), (M, K), (K, N))),
    "addmm, whole summand": (torch.addmm, ((M, N), (M, K), (K, N))),
    "addmm, column": (torch.addmm, ((M, 1), (M, K), (K, N))),
    "addmm, beta 0": (lambda c, a, b: torch.addmm(c, a, b, beta=0), ((M, N), (M, K), (K, N))),
    "bmm": (torch.bmm, ((4, M, K), (4, K, N))),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=3, alpha=2), ((1, 1, N), (4, M, K), (4, K, N))),
    "mv": (torch.mv, ((M, K), (K,))),
    "addmv": (lambda c, a, b: torch.addmv(c, a, b, beta=0.5, alpha=2), ((M,), (M, K), (K,))),
    "dot": (torch.dot, ((K,), (K,))),
    "linear": (functional.linear, ((5, M, K), (N, K), (N,))),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), ((2, M, K), (2, N, K))),
    "turned": (lambda a, b: a.T @ b.T, ((K, M), (N, K))),
    "strided": (lambda a, b: a[::2, 1::3] @ b[::3, ::2], ((M, 2 * K), (2 * K - 1, N))),
}
POINTWISE: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "add": (torch.add, ((M, N), (M, N))),
    "add, scaled": (lambda a, b: torch.add(a, b, alpha=3), ((M, N), (N,))),
    "add, number": (lambda a: a + 1, ((M, N),)),
    "sub": (torch.sub, ((M, 1), (N,))),
    "mul": (torch.mul, ((4, M, 1), (M, N))),
    "mul, number": (lambda a: 2.5 * a, ((M, N),)),
    "div": (torch.div, ((M, N), (M, N))),
    "div, floor": (lambda a, b: torch.div(a, b, rounding_mode="floor"), ((M, N), (M, N))),
    "maximum": (torch.maximum, ((M, N), (M, N))),
    "minimum": (torch.minimum, ((M, N), (N,))),
    "pow": (lambda a: a**2, ((M, N),)),
    "pow, tensor": (lambda a, b: a.abs() ** b, ((M, N), (M, N))),
    "pow of a number": (lambda a: 2**a, ((M, N),)),
    "exp": (torch.exp, ((M, N),)),
    "log": (lambda a: (a * a + 1).log(), ((M, N),)),
    "sqrt": (lambda a: (a * a + 1).sqrt(), ((M, N),)),
    "tanh": (torch.tanh, ((M, N),)),
    "sigmoid": (torch.sigmoid, ((M, N),)),
    "relu": (torch.relu, ((M, N),)),
    "gelu": (functional.gelu, ((M, N),)),
    "silu": (functional.silu, ((M, N),)),
    "neg": (torch.neg, ((M, N),)),
    "abs": (torch.abs, ((M, N),)),
    "where": (lambda a, b: torch.where(a > 0, a, b), ((M, N), (M, N))),
    "softmax": (lambda a: a.softmax(-1), ((5, M, N),)),
    "softmax over rows": (lambda a: a.softmax(1), ((5, M, N),)),
    "log_softmax": (lambda a: a.log_softmax(0), ((M, N),)),
    "turned": (lambda a, b: a.T + b, ((N, M), (M, N))),
    "turned, exp": (lambda a: a.T.exp(), ((N, M),)),
}


CUT_ACROSS_VECTORS = ("softmax over rows",)
"""What tiles this small cut where torch's vector instructions would not end: the last bit may differ."""


def operands(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def differentiated(function: Function, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the function's value and the gradients of every operand."""
    leaves = [value.clone().requires_grad_() for value in values]
    result = function(*leaves)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    (result * weights).sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, route: Route) -> None:
    function, shapes = PRODUCTS[name]
    values = operands(shapes, torch.float64)
    expected = differentiated(function, values)
    with forced(route):
        found = differentiated(function, values)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", POINTWISE)
def test_element_by_element_to_the_bit(name: str, route: Route) -> None:
    function, shapes = POINTWISE[name]
    values = operands(shapes)
    expected = function(*values)
    with forced(route), counted() as seen:
        found = function(*values)
    if name in CUT_ACROSS_VECTORS:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    else:
        assert torch.equal(found, expected)
    assert (found.stride(), found.dtype) == (expected.stride(), expected.dtype)
    assert getattr(seen[0].total, route) >= 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["mul", "div", "exp", "gelu", "where", "softmax", "log_softmax"])
def test_gradients_element_by_element(name: str, route: Route) -> None:
    function, shapes = POINTWISE[name]
    values = operands(shapes)
    expected = differentiated(function, values)
    with forced(route):
        found = differentiated(function, values)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int32, torch.int64]
)
def test_products_of_other_types(dtype: torch.dtype, route: Route) -> None:
    a, b, c = operands(((M, K), (K, N), (N,)), torch.float64)
    a, b, c = ((4 * each).to(dtype) for each in (a, b, c))
    half = dtype.itemsize == 2
    expected = torch.addmm(c.double(), a.double(), b.double()) if half else torch.addmm(c, a, b)
    with forced(route):
        found = torch.addmm(c, a, b)
    assert found.dtype == dtype
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=2e-2 if half else 1e-4, atol=0.5)


@pytest.mark.parametrize("route", ROUTES)
def test_conjugated_and_negated_views(route: Route) -> None:
    a, b = operands(((K, M), (K, N)), torch.complex128)
    expected = a.mH @ b, a.conj().T @ b.conj(), a.conj().imag.T @ b.real
    with forced(route):
        found = a.mH @ b, a.conj().T @ b.conj(), a.conj().imag.T @ b.real
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "pair", [(torch.int32, torch.float32), (torch.float32, torch.float64), (torch.bool, torch.int8)]
)
def test_mixed_types_are_promoted_as_torch_does(pair: tuple[torch.dtype, torch.dtype], route: Route) -> None:
    a, b = operands(((M, N), (N,)))
    a, b = a.to(pair[0]), (3 * b).to(pair[1])
    cases: list[Function] = [
        torch.add,
        torch.mul,
        torch.true_divide,
        lambda a, b: a + 1.5,
        lambda a, b: a * 2j,
    ]
    for case in cases:
        expected = case(a, b)
        with forced(route):
            found = case(a, b)
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype


@given(
    shapes=st.sampled_from(
        [((7, 9), (7, 9)), ((7, 1), (9,)), ((3, 7, 9), (7, 1)), ((63,), (1,)), ((2, 3, 4, 5), (4, 1))]
    ),
    turned=st.tuples(st.booleans(), st.booleans()),
    tile_bytes=st.integers(4, 400),
    route=st.sampled_from(ROUTES),
)
def test_any_tiles_and_strides(
    shapes: tuple[tuple[int, ...], ...], turned: tuple[bool, bool], tile_bytes: int, route: Route
) -> None:
    values = []
    for shape, turn in zip(shapes, turned, strict=True):
        value = operands((tuple(reversed(shape)),))[0].permute(*reversed(range(len(shape))))
        values.append(value if turn else value.contiguous())
    expected = torch.atan2(*values) * 0 + torch.sub(*values)
    with forced(route, tile_bytes):
        found = torch.sub(*values)
    assert torch.equal(found, expected)
    assert found.stride() == torch.sub(*values).stride()


class TestGivenResults:
    def test_out(self) -> None:
        a, b, c = operands(((M, K), (K, N), (M, N)))
        for function, arguments in ((torch.mm, (a, b)), (torch.addmm, (c, a, b)), (torch.mul, (c, c))):
            expected, out = function(*arguments), torch.full((M, N), torch.nan)
            with forced("chunked"):
                assert function(*arguments, out=out) is out
            torch.testing.assert_close(out, expected)

    def test_out_with_strides_of_its_own(self) -> None:
        a, b = operands(((M, K), (K, N)))
        out = torch.zeros(N, 2 * M).T[::2]
        with forced("chunked"):
            torch.mm(a, b, out=out)
        torch.testing.assert_close(out, a @ b)

    def test_out_that_is_resized(self) -> None:
        a, b = operands(((M, K), (K, N)))
        out = torch.empty(0)
        with forced("chunked"), counted() as seen:
            torch.mm(a, b, out=out)
        assert torch.equal(out, a @ b)
        assert list(seen[0].by_op["mm.out"].passed) == ["a result given that is resized or shares memory"]

    def test_in_place(self) -> None:
        a, b, c = operands(((M, K), (K, N), (M, N)))
        cases: list[Function] = [
            lambda x: x.addmm_(a, b, beta=2),
            lambda x: x.add_(c, alpha=2),
            lambda x: x.mul_(x),
            lambda x: x.sigmoid_(),
            lambda x: x.div_(3),
        ]
        for case in cases:
            expected, value = case(c.clone()), c.clone()
            with forced("chunked"):
                assert case(value) is value
            torch.testing.assert_close(value, expected)

    def test_operands_that_share_its_memory_are_left_to_torch(self) -> None:
        x = operands(((N, N),))[0]
        expected = x.clone().add_(x.clone()[0])
        with forced("chunked"), counted() as seen:
            x.add_(x[0].clone())
            torch.testing.assert_close(x, expected)
            row = x[:, :1].expand(N, N).clone()
            expected = x + row
            out = x
            torch.add(x, row, out=out)
        assert torch.equal(x, expected)
        assert "a result given that shares memory" not in seen[0].total.passed

    def test_a_factor_that_is_the_result_is_left_to_torch(self) -> None:
        a = torch.rand(M, M)
        with counted() as seen, forced("chunked"):
            torch.mm(a, torch.rand(M, M), out=a)
        assert seen[0].by_op["mm.out"].passed.total() == 1

    def test_an_overlapping_row_is_left_to_torch(self) -> None:
        x = torch.ones(8, 8)[:, ::2]
        with forced("chunked"), counted() as seen:
            x.add_(x[0])
        assert seen[0].total.passed == {"a result given that shares memory": 1}


class TestCallersErrors:
    @pytest.mark.parametrize("route", ROUTES)
    def test_are_torchs_own(self, route: Route) -> None:
        a, b = operands(((M, K), (M, N)))
        calls: list[Callable[[], object]] = [
            lambda: torch.mm(a, b),
            lambda: torch.mm(a, b.double()),
            lambda: a + b,
            lambda: torch.addmm(a, a.T, b),
            lambda: torch.bmm(a, b),
            lambda: a.softmax(7),
            lambda: a.int().add_(1.5),
            lambda: a[0].add_(b),
        ]
        for call in calls:
            with pytest.raises((RuntimeError, IndexError)) as expected:
                call()
            with forced(route), pytest.raises(type(expected.value)) as found:
                call()
            assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_and_one_element(route: Route) -> None:
    with forced(route):
        assert (torch.ones(0, 3) @ torch.ones(3, 4)).shape == (0, 4)
        assert torch.equal(torch.ones(2, 0) @ torch.ones(0, 4), torch.zeros(2, 4))
        assert torch.equal(torch.addmm(torch.ones(4), torch.ones(2, 0), torch.ones(0, 4)), torch.ones(2, 4))
        assert (torch.ones(0, 3) + 1).shape == (0, 3)
        assert torch.tensor(2.0) + torch.tensor(3.0) == 5


@pytest.mark.parametrize("route", ROUTES)
def test_without_gradients_and_in_inference_mode(route: Route) -> None:
    a, b, c = operands(((M, K), (K, N), (N,)))
    expected = torch.relu(torch.addmm(c, a, b))
    for mode in (torch.no_grad, torch.inference_mode):
        with forced(route), mode():
            found = torch.relu(torch.addmm(c, a, b))
        torch.testing.assert_close(found, expected)
        assert found.is_inference() == (mode is torch.inference_mode)


def test_second_gradients_go_through() -> None:
    a, b = operands(((4, 3), (3, 5)), torch.float64)
    leaves = [each.requires_grad_() for each in (a, b)]
    with forced("spilled"):
        assert torch.autograd.gradgradcheck(lambda x, y: torch.tanh(x @ y), leaves)


@pytest.mark.parametrize("place", ["cpu", "sim:64MiB"])
def test_products_computed_elsewhere(place: str) -> None:
    from accelera.interceptor import intercepted

    a, b, c = operands(((M, K), (K, N), (N,)))
    with intercepted("256MiB", 0, 0, device=place), counted() as seen:
        found = torch.addmm(c, a, b)
    torch.testing.assert_close(found, torch.addmm(c, a, b))
    assert seen[0].total.direct == (place == "cpu")


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_integers_divided(mode: str) -> None:
    a, b = torch.randint(-50, 50, (M, N)), torch.randint(1, 9, (M, N))
    with counted() as seen, forced("chunked"):
        found = torch.div(a, b, rounding_mode=mode)
    assert seen[0].by_op["div.Tensor_mode"].chunked == 1
    assert torch.equal(found, torch.div(a, b, rounding_mode=mode))


def test_factors_and_result_end_with_their_last_name() -> None:
    """Not only when garbage is collected: a product that no plan fits must leave no cycle behind."""
    a, b = torch.rand(2100, 8), torch.rand(8, 2100)
    gc.disable()
    try:
        with accelera.intercepted("12MiB", 0, 0):
            accelera.stats(reset=True)
            result = a @ b
        ends = [weakref.ref(each) for each in (a, b, result)]
        spilled = accelera.stats()
        assert spilled.by_op["mm"].spilled == 1
        del a, b, result
        assert not [each for each in ends if each() is not None]
        assert accelera.stats().spilled_now_bytes == spilled.spilled_now_bytes - 2100 * 2100 * 4
    finally:
        gc.enable()
