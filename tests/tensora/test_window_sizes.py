"""Windows with huge strides, dilations and paddings: quick right answers or errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import functional
from tests.children import answer_of

torch = pytest.importorskip("torch")
TF = torch.nn.functional

HUGE = [10**6 + 3, 2**31 - 1, 2**32 + 1, 3 * 10**9, 2**40 + 5, 2**48, 2**62, 2**63 - 1, 2**63, 10**30]


def _image(n: int, size: int = 9, channels: int = 1) -> Any:
    shape = (1, channels, *[size] * n)
    numbers = np.random.default_rng(n).standard_normal(shape).astype(np.float32)
    return ts.tensor(numbers).requires_grad_()


def _weight(n: int, size: int = 2) -> Any:
    return ts.tensor(
        np.arange(1.0, size**n + 1, dtype=np.float32).reshape(1, 1, *[size] * n)
    ).requires_grad_()


CALLS: dict[str, Callable[[int, dict[str, int]], Any]] = {
    "conv": lambda n, options: getattr(functional, f"conv{n}d")(_image(n), _weight(n), **options),
    "conv_transpose": lambda n, options: getattr(functional, f"conv_transpose{n}d")(
        _image(n, 1), _weight(n), **{k: v for k, v in options.items() if k != "ceil_mode"}
    ),
    "max_pool": lambda n, options: getattr(functional, f"max_pool{n}d")(_image(n), 2, **options),
    "avg_pool": lambda n, options: getattr(functional, f"avg_pool{n}d")(
        _image(n), 2, **{k: v for k, v in options.items() if k != "dilation"}
    ),
    "unfold": lambda n, options: functional.unfold(_image(2), 2, **options),
    "fold": lambda n, options: functional.fold(_image(1, 4, 4), (9, 9), 2, **options),
}
OPTIONS = ["stride", "dilation", "padding", "groups"]


def all_calls(name: str) -> list[str]:
    """Call an operation forward and backward with every huge number; return the messages of its errors."""
    messages = []
    for n, option, value in itertools.product((1, 2, 3), OPTIONS, HUGE):
        if option == "padding" and name in ("conv", "unfold") and 10**6 < value <= 2**40:
            continue  # a result of that many elements
        if option == "groups" and not name.startswith("conv"):
            continue
        if name == "conv_transpose" and option == "dilation" and 10**6 < value <= 2**40:
            continue
        try:
            ts.sum(CALLS[name](n, {option: value})).backward()
        except (ValueError, MemoryError, TypeError, OverflowError) as error:
            messages.append(str(error))
    return messages


PROGRAM = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from tests.tensora.test_window_sizes import all_calls
print(json.dumps(all_calls(sys.argv[1])))
"""


@pytest.mark.parametrize("name", CALLS)
def test_huge_numbers_end_at_once(name):
    messages = answer_of("-c", PROGRAM, name)
    assert messages
    assert all("stack" not in message and len(message) > 20 for message in messages), messages


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("stride", [5, 9, 10, 10**6, 2**31 + 3, 2**40, 2**48])
def test_gradients_with_large_strides_equal_pytorchs(n, stride):
    x, weight = _image(n), _weight(n)
    result = getattr(functional, f"conv{n}d")(x, weight, stride=stride, padding=1)
    ts.sum(ts.square(result)).backward()
    a, b = (torch.tensor(np.asarray(each.detach())).requires_grad_() for each in (x, weight))
    # PyTorch's oneDNN has no large strides; beyond the padded extent they are all the same.
    expected = getattr(TF, f"conv{n}d")(a, b, stride=min(stride, 12), padding=1)
    expected.square().sum().backward()
    np.testing.assert_allclose(np.asarray(result.detach()), expected.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(x.grad), a.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(weight.grad), b.grad.numpy(), rtol=1e-5)


@settings(deadline=None, max_examples=80)
@given(
    size=st.integers(1, 30),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 12),
    padding=st.integers(0, 6),
    dilation=st.integers(1, 9),
    channels=st.integers(1, 3),
)
def test_windows_of_all_sizes_equal_pytorchs(size, kernel, stride, padding, dilation, channels):
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        return
    rng = np.random.default_rng(size)
    x = ts.tensor(rng.standard_normal((2, channels, size, 3))).requires_grad_()
    weight = ts.tensor(rng.standard_normal((4, channels, kernel, 2))).requires_grad_()
    options: dict[str, Any] = {"stride": (stride, 1), "padding": (padding, 0), "dilation": (dilation, 1)}
    result = functional.conv2d(x, weight, **options)
    ts.sum(ts.square(result)).backward()
    a, b = (torch.tensor(np.asarray(each.detach())).requires_grad_() for each in (x, weight))
    expected = TF.conv2d(a, b, **options)
    expected.square().sum().backward()
    np.testing.assert_allclose(np.asarray(result.detach()), expected.detach().numpy(), atol=1e-10)
    np.testing.assert_allclose(np.asarray(x.grad), a.grad.numpy(), atol=1e-9)
    np.testing.assert_allclose(np.asarray(weight.grad), b.grad.numpy(), atol=1e-9)


@pytest.mark.parametrize(("dilation", "stride"), [(10**9, 1), (10**9, 10**9), (2**33 + 1, 3), (5000, 1)])
def test_dilations_that_leave_the_input(dilation, stride):
    """Only the middle tap of a kernel reads the input; all others read padding."""
    x, weight = _image(1), ts.tensor([[[2.0, 3.0, 4.0]]]).requires_grad_()
    result = functional.conv1d(x, weight, padding=dilation, dilation=dilation, stride=stride)
    ts.sum(result).backward()
    columns = np.asarray(x.detach())[..., ::stride]
    np.testing.assert_allclose(np.asarray(result.detach()), 3.0 * columns, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(weight.grad), [[[0.0, columns.sum(), 0.0]]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [0, -1, 2, 2**32 + 1, 2**33 + 1, 2**62, 2**64 + 1])
def test_numbers_of_groups_are_checked(groups):
    with pytest.raises((ValueError, TypeError)):
        functional.conv1d(_image(1), _weight(1), groups=groups)
