"""Values of the wrong type that user code returns, assigns or stores: errors that name them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import nn, optim
from accelera.tensora.core import native


class _Unprintable:
    def __repr__(self):
        raise KeyError("no representation")


WRONG_GRADIENTS = [3, 2.5, True, "text", [1.0], (1.0,), {}, np.ones(3, np.float32), _Unprintable(), 1j]
wrong_gradients = pytest.mark.parametrize("value", WRONG_GRADIENTS, ids=lambda value: type(value).__name__)


def _leaf(n=3):
    x = ts.full((n,), 2.0)
    x.requires_grad = True
    return x


def _type_name(value):
    return type(value).__name__


@wrong_gradients
@pytest.mark.parametrize("on_leaf", [True, False])
def test_hook_result_of_wrong_type_is_named(value, on_leaf):
    x = _leaf()
    y = x * 2
    (x if on_leaf else y).register_hook(lambda grad: value)
    with pytest.raises(TypeError, match=rf"\[hook\] returned .*{_type_name(value)}.*; expected"):
        y.sum().backward()


@pytest.mark.parametrize("on_leaf", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "int32", "bool", "float16"])
def test_hook_result_takes_the_gradients_dtype(on_leaf, dtype):
    x = _leaf()
    y = x * 2
    (x if on_leaf else y).register_hook(lambda grad: ts.ones((3,), dtype=dtype))
    y.sum().backward()
    assert x.grad.dtype == x.dtype
    assert x.grad.tolist() == [1.0 if on_leaf else 2.0] * 3


@wrong_gradients
def test_grad_assignment_of_wrong_type_is_named(value):
    x = _leaf()
    with pytest.raises(TypeError, match=rf"\[grad\] assigned .*{_type_name(value)}.*; expected"):
        x.grad = value
    assert x.grad is None


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "bool", "complex64"])
def test_grad_assignment_checks_the_dtype(dtype):
    x = _leaf()
    with pytest.raises(TypeError, match=rf"\[grad\] elements of type {dtype} for a tensor of float32"):
        x.grad = ts.ones((3,), dtype=dtype)


def _function(forward, backward):
    class Custom(ts.autograd.Function):
        pass

    Custom.forward, Custom.backward = staticmethod(forward), staticmethod(backward)
    return Custom


@wrong_gradients
@pytest.mark.parametrize("position", [0, 1])
def test_function_backward_of_wrong_type_is_named(value, position):
    def backward(ctx, grad):
        grads = [grad, grad]
        grads[position] = value
        return tuple(grads)

    y = _function(lambda ctx, a, b: a * b, backward).apply(_leaf(), _leaf())
    message = rf"'Custom'\] the gradient of input {position} is .*{_type_name(value)}.*; expected"
    with pytest.raises(TypeError, match=message):
        y.sum().backward()


@pytest.mark.parametrize("value", [3, "text", [ts.ones((3,))], {}, np.ones(3)], ids=_type_name)
def test_function_backward_without_a_tuple_is_named(value):
    y = _function(lambda ctx, a: a * 2, lambda ctx, grad: value).apply(_leaf())
    with pytest.raises(TypeError, match=f"the gradient of input 0 is .*{_type_name(value)}"):
        y.sum().backward()


@pytest.mark.parametrize("value", [3, None, [ts.ones((3,))], np.ones(3), (ts.ones((3,)), 3)], ids=_type_name)
def test_function_forward_of_wrong_type_is_named(value):
    with pytest.raises(
        TypeError, match=r"\[Custom\.forward\] returned .*; expected a Tensor or a tuple of Tensors"
    ):
        _function(lambda ctx, a: value, lambda ctx, grad: grad).apply(_leaf())


def test_save_for_backward_takes_tensors_and_none():
    def forward(ctx, a):
        ctx.save_for_backward(None, a)
        return a * 2

    def backward(ctx, grad):
        assert ctx.saved_tensors[0] is None
        return grad * ctx.saved_tensors[1]

    x = _leaf()
    _function(forward, backward).apply(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    context = ts.autograd.Context()
    for value in (3, "text", [x], np.ones(3)):
        with pytest.raises(TypeError, match=r"\[save_for_backward\] argument 1 is .*; expected"):
            context.save_for_backward(x, value)


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize("value", [3, "text", [1], {}, np.ones(2), (3,)], ids=_type_name)
def test_module_backward_hook_of_wrong_type_is_named(kind, value):
    layer = nn.Linear(3, 2)
    getattr(layer, kind)(lambda *args: value)
    with pytest.raises(TypeError, match=r"backward (pre-)?hook of Linear\] returned .*; expected a Tensor"):
        layer(_leaf()).sum().backward()


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize("count", [0, 2, 3])
def test_module_backward_hook_checks_the_count(kind, count):
    layer = nn.Linear(3, 2)
    getattr(layer, kind)(lambda *args: (None,) * count)
    with pytest.raises(RuntimeError, match=rf"of Linear\] returned {count} gradients, expected 1"):
        layer(_leaf()).sum().backward()


NOT_NUMBERS = ["text", None, (1.0, 2.0), [0.1], {}, 1j, _Unprintable()]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 2**2000], ids=_type_name)
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        *[(optim.SGD, option) for option in ("lr", "weight_decay", "momentum", "dampening")],
        *[(optim.Adam, option) for option in ("lr", "weight_decay", "eps")],
        (optim.AdamW, "lr"),
    ],
)
def test_optimizer_option_changed_to_no_number_is_named(kind, value, option):
    x = _leaf()
    optimizer = kind([x], lr=0.1)
    optimizer.param_groups[0][option] = value
    (x * 2).sum().backward()
    with pytest.raises(TypeError, match=rf"option {option} is .*{_type_name(value)}.*; expected a number"):
        optimizer.step()


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.RMSprop, optim.Adadelta, optim.Adafactor])
@pytest.mark.parametrize("value", ["text", (1.0,), {}, 1j], ids=_type_name)
def test_optimizer_argument_that_is_no_number_is_named(kind, value):
    with pytest.raises(TypeError, match=rf"\[{kind.__name__}\] lr=.*{_type_name(value)}.*; give a number"):
        kind([_leaf()], lr=value)


@pytest.mark.parametrize("value", ["text", None, 0.9, (0.9,), (0.9, 0.9, 0.9), (0.9, "text")])
def test_optimizer_betas_that_are_no_pair_are_named(value):
    with pytest.raises(TypeError, match=r"\[Adam\] betas=.*; give two numbers"):
        optim.Adam([_leaf()], betas=value)


@pytest.mark.parametrize("maximize", [1, np.bool_(True), "yes"])
def test_optimizer_flags_are_read_by_their_truth(maximize):
    x = _leaf()
    optimizer = optim.SGD([x], lr=0.5)
    optimizer.param_groups[0]["maximize"] = maximize
    x.sum().backward()
    optimizer.step()
    assert x.tolist() == [2.5] * 3


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("stream", "text"),
        ("stream", 2**70),
        ("max_version", "text"),
        ("max_version", 1),
        ("max_version", ()),
        ("max_version", (1.5, 0)),
        ("max_version", (2**70, 0)),
        ("dl_device", 3),
        ("dl_device", (1,)),
        ("dl_device", ("cpu", 0)),
        ("dl_device", (1, 2**40)),
    ],
)
def test_dlpack_argument_of_wrong_type_is_named(option, value):
    with pytest.raises(TypeError, match=rf"\[__dlpack__\] {option} is .*; expected None or"):
        ts.ones((2,)).__dlpack__(**{option: value})


class _Exporter:
    def __init__(self, device):
        self._device = device

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **options):
        return ts.ones((2,)).__dlpack__()


@pytest.mark.parametrize("device", [None, 3, "ab", (), (1,), (2, "x"), (1.5, 0), (2**40, 0), (2, 2**50)])
def test_dlpack_device_of_wrong_type_is_named(device):
    with pytest.raises(TypeError, match=r"__dlpack_device__ returned .*; expected a tuple"):
        ts.from_dlpack(_Exporter(device))


class _Printed:
    def __init__(self, text):
        self._text = text

    def __repr__(self):
        return self._text


@given(text=st.text(st.characters(codec=None), max_size=200))
def test_error_text_quotes_any_representation(text):
    with pytest.raises(TypeError, match="where a Tensor is needed") as caught:
        native.sum(_Printed(text))
    start = text.encode("utf-8", "backslashreplace").decode() if len(text) <= 60 else ""
    assert start in str(caught.value)


def test_error_of_unprintable_values_names_the_type():
    with pytest.raises(TypeError, match="_Unprintable"):
        native.sum(_Unprintable())
    with pytest.raises(TypeError, match="_Unprintable"):
        ts.zeros((2,), dtype=_Unprintable())  # type: ignore[arg-type]


def test_dtype_name_without_utf8_is_refused():
    class Type:
        name = "\ud800"

    with pytest.raises(TypeError, match="is no element type"):
        ts.zeros((2,), dtype=Type())  # type: ignore[arg-type]
