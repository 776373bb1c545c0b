"""Automatic differentiation: gradients of recorded operations, products with Jacobians, numerical checks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from accelera.errors import AcceleraError, ArgumentError, ShapeError, StateError
from accelera.tensora.core import Tensor, native, require_tensors

Tensors = Tensor | Sequence[Tensor]


def _as_list(tensors: Tensors | None) -> list[Any]:
    if tensors is None:
        return []
    if isinstance(tensors, Tensor):
        return [tensors]
    listed: list[Tensor | None] = list(tensors)
    require_tensors(*(each for each in listed if each is not None))
    return listed


# --- switches ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _grad_mode(enabled: bool) -> Iterator[None]:
    before = native.grad_enabled()
    native.set_grad_enabled(enabled)
    try:
        yield
    finally:
        native.set_grad_enabled(before)


def no_grad() -> contextlib.AbstractContextManager[None]:
    """Context, or decorator, in which this thread's operations are not recorded."""
    return _grad_mode(False)


def enable_grad() -> contextlib.AbstractContextManager[None]:
    """Context, or decorator, in which operations are recorded again inside `no_grad`."""
    return _grad_mode(True)


def is_grad_enabled() -> bool:
    """Return whether operations of this thread are recorded."""
    return bool(native.grad_enabled())


@contextlib.contextmanager
def detect_anomaly() -> Iterator[None]:
    """Context in which a failure or NaN in the backward pass names the line of the forward pass.

    Every operation then records its Python stack, which costs tens of microseconds.
    """
    before = native.anomaly()
    native.set_anomaly(True)
    try:
        yield
    finally:
        native.set_anomaly(before)


# --- gradients --------------------------------------------------------------------------------------------


def backward(
    tensors: Tensors,
    grad_tensors: Tensors | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Add to `.grad` of each leaf the gradient of the sum of `tensors`, weighted by `grad_tensors`.

    Parameters
    ----------
    tensors
        One or more tensors of floating-point or complex type that were computed from leaves with
        ``requires_grad=True``.
    grad_tensors
        Weight for each element, of the shape of its tensor. May be left out for tensors with one element.
    retain_graph
        Whether what was saved for the backward pass is kept for another one. As `create_graph` by default.
    create_graph
        Whether the backward pass is itself recorded, for gradients of gradients.

    Raises
    ------
    RuntimeError
        If a tensor is part of no graph, the graph was released by an earlier pass, or a value that the pass
        needs was written in place.
    ValueError
        If a weight has another shape than its tensor, or is missing.

    """
    retain = create_graph if retain_graph is None else retain_graph
    native.backward(_as_list(tensors), _as_list(grad_tensors), [], retain, create_graph, True, True)


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensors | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """Gradients of the sum of `outputs` with respect to `inputs`; no `.grad` changes.

    Parameters
    ----------
    outputs, grad_outputs, retain_graph, create_graph
        As for `backward`.
    inputs
        Leaves, or tensors between them and the outputs.
    allow_unused
        Return None for an input from which no output was computed, instead of raising RuntimeError.

    """
    retain = create_graph if retain_graph is None else retain_graph
    wanted = _as_list(inputs)
    found = native.backward(
        _as_list(outputs), _as_list(grad_outputs), wanted, retain, create_graph, False, allow_unused
    )
    return tuple(found)


class Hook:
    """Handle of a function that is called with a tensor's gradient."""

    def __init__(self, tensor: Any, number: int, remove: Callable[[Any, int], None]) -> None:
        self._tensor = tensor
        self._number = number
        self._remove = remove

    def remove(self) -> None:
        """Do not call the function any more."""
        self._remove(self._tensor, self._number)


def register_hook(tensor: Tensor, function: Callable[[Any], Any]) -> Hook:
    """Call `function` with each gradient that reaches `tensor`; a tensor that it returns takes its place."""
    return Hook(tensor, native.add_hook(tensor, function), native.remove_hook)


def register_post_accumulate_grad_hook(tensor: Tensor, function: Callable[[Any], Any]) -> Hook:
    """Call `function` with the leaf `tensor` whenever a backward pass has added to its ``grad``.

    Raises
    ------
    RuntimeError
        If the tensor is no leaf that requires gradients.

    """
    return Hook(tensor, native.add_after_hook(tensor, function), native.remove_after_hook)


# --- operations of the user -------------------------------------------------------------------------------


class Context:
    """State that the forward part of a `Function` saves for its backward part."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()
        self._versions: tuple[int, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors, or None, for the backward part, which finds them in `saved_tensors`.

        Raises
        ------
        TypeError
            If an argument is neither a tensor nor None.

        """
        for i, each in enumerate(tensors):
            if each is not None and not isinstance(each, Tensor):
                raise ArgumentError(
                    f"[save_for_backward] argument {i} is {each!r:.60} ({type(each).__name__}); expected a "
                    "Tensor or None. Store other values as attributes of ctx"
                )
        self.saved_tensors = tensors
        self._versions = tuple(0 if each is None else each._version() for each in tensors)

    def check(self, name: str) -> None:
        """Raise RuntimeError if a saved tensor was written in place since."""
        for i, (tensor, version) in enumerate(zip(self.saved_tensors, self._versions, strict=True)):
            if tensor is not None and tensor._version() != version:
                raise StateError(
                    f"[backward of '{name}'] saved tensor {i}, of shape {tuple(tensor.shape)}, was written "
                    "in place after it was saved, so the gradient is lost; write to a copy instead"
                )


class Function:
    """Operation with a user-defined gradient.

    A subclass defines two static methods, ``forward(ctx, *inputs)`` and ``backward(ctx, *grads)``, the latter
    with one gradient (or None) for each input, and is used as ``Subclass.apply(*inputs)``. A backward part
    made of Tensora's operations can be differentiated again.
    """

    forward: ClassVar[Callable[..., Any]]
    backward: ClassVar[Callable[..., Any]]

    @classmethod
    def apply(cls, *inputs: Any) -> Any:
        """Run the operation, recorded as one step.

        Raises
        ------
        TypeError
            If the subclass lacks one of the two methods, or `forward` returns something else than tensors; in
            the backward pass, if `backward` returns something else than tensors and None.
        RuntimeError
            In the backward pass, if `backward` returns another number of gradients than there are inputs.

        """
        for name in ("forward", "backward"):
            if not hasattr(cls, name):
                raise ArgumentError(f"[{cls.__name__}] it has no {name}; define it as a static method")
        ctx = Context()
        tensors = [each for each in inputs if isinstance(each, Tensor)]
        ctx.needs_input_grad = tuple(isinstance(each, Tensor) and each.requires_grad for each in inputs)
        with no_grad():
            made = cls.forward(ctx, *inputs)
        outputs = list(made) if isinstance(made, tuple) else [made]
        for each in outputs:
            if not isinstance(each, Tensor):
                raise ArgumentError(
                    f"[{cls.__name__}.forward] returned {each!r:.60} ({type(each).__name__}); "
                    "expected a Tensor or a tuple of Tensors"
                )

        def gradients(*grads: Any) -> tuple[Any, ...]:
            ctx.check(cls.__name__)
            found = cls.backward(ctx, *grads)
            found = found if isinstance(found, tuple) else (found,)
            if len(found) != len(inputs):
                raise StateError(
                    f"[{cls.__name__}.backward] returned {len(found)} gradients for {len(inputs)} inputs"
                )
            return tuple(g for g, each in zip(found, inputs, strict=True) if isinstance(each, Tensor))

        attached = native.attach(cls.__name__, gradients, tensors, outputs)
        return tuple(attached) if isinstance(made, tuple) else attached[0]


# --- products with Jacobians ------------------------------------------------------------------------------


def _new_leaves(inputs: Tensors) -> list[Any]:
    """Return the inputs detached, as new leaves that require gradients."""
    leaves = [each.detach() for each in _as_list(inputs)]
    for leaf in leaves:
        leaf.requires_grad = True
    return leaves


def _differentiable_inputs(tensors: Sequence[Any]) -> list[Any]:
    """Return the inputs, those that require no gradient replaced by new leaves."""
    return [each if each.requires_grad else _new_leaves(each)[0] for each in tensors]


def _zeros_like(tensor: Any) -> Tensor:
    return native.full(tuple(tensor.shape), 0, tensor.dtype)


def vjp(
    function: Callable[..., Any], inputs: Tensors, v: Tensors | None = None, *, create_graph: bool = False
) -> tuple[Any, Any]:
    """Outputs of ``function(*inputs)``, and the product of `v` with its Jacobian from the left."""
    leaves = _differentiable_inputs(_as_list(inputs)) if create_graph else _new_leaves(inputs)
    with enable_grad():
        outputs = function(*leaves)
        found = grad(outputs, leaves, v, create_graph=create_graph, allow_unused=True)
    found = tuple(_zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True))
    return outputs, found[0] if isinstance(inputs, Tensor) else found


def jvp(
    function: Callable[..., Any], inputs: Tensors, v: Tensors, *, create_graph: bool = False
) -> tuple[Any, Any]:
    """Outputs of ``function(*inputs)``, and the product of its Jacobian with `v` from the right.

    Two backward passes: the vjp is linear in its weights, and its own vjp with respect to them is the product
    (the "double backward trick").
    """
    leaves = _differentiable_inputs(_as_list(inputs)) if create_graph else _new_leaves(inputs)
    with enable_grad():
        outputs = function(*leaves)
        listed = _as_list(outputs)
        weights = [_zeros_like(each.detach()) for each in listed]
        for weight in weights:
            weight.requires_grad = True
        linear = grad(listed, leaves, weights, create_graph=True, allow_unused=True)
        used = [(g, direction) for g, direction in zip(linear, _as_list(v), strict=True) if g is not None]
        products: Sequence[Any] = [None] * len(weights)
        used = [(g, direction) for g, direction in used if g.requires_grad]
        if used:
            products = grad(
                [g for g, _ in used],
                weights,
                [direction for _, direction in used],
                create_graph=create_graph,
                allow_unused=True,
            )
    found = tuple(
        _zeros_like(weight) if g is None else g for g, weight in zip(products, weights, strict=True)
    )
    return outputs, found[0] if isinstance(outputs, Tensor) else found


def _jacobian_rows(output: Any, leaves: list[Any], create_graph: bool) -> list[list[Any]]:
    """Return the rows of a Jacobian: for each element of the output its gradients by leaf."""
    rows = []
    n = output.size
    for i in range(n):
        weight = native.full((n,), 0, output.dtype)
        weight[i] = 1
        weight = native.reshape(weight, tuple(output.shape))
        found = grad(output, leaves, weight, retain_graph=True, create_graph=create_graph, allow_unused=True)
        rows.append([_zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)])
    return rows


def jacobian(function: Callable[..., Any], inputs: Tensors, *, create_graph: bool = False) -> Any:
    """Jacobian of a function with one output: a tensor of shape ``output.shape + input.shape``.

    With several inputs, a tuple with one for each. One backward pass for each element of the output.
    """
    leaves = _differentiable_inputs(_as_list(inputs)) if create_graph else _new_leaves(inputs)
    with enable_grad():
        output = function(*leaves)
        rows = _jacobian_rows(output, leaves, create_graph) if output.requires_grad else []
    blocks = []
    for i, leaf in enumerate(leaves):
        shape = (*output.shape, *leaf.shape)
        if not rows:
            blocks.append(native.full(shape, 0, leaf.dtype))
            continue
        flat = [native.reshape(row[i], (1, leaf.size)) for row in rows]
        blocks.append(native.reshape(native.concat(flat, 0), shape))
    return blocks[0] if isinstance(inputs, Tensor) else tuple(blocks)


def hessian(function: Callable[..., Any], inputs: Tensor | Sequence[Tensor]) -> Tensor:
    """Matrix of second derivatives of a function with one input and one number as its output.

    Of shape ``input.shape + input.shape``.
    """

    def gradient(x: Any) -> Tensor:
        value = function(x)
        if value.size != 1:
            raise ShapeError(f"[hessian] the function returned shape {tuple(value.shape)}, not one number")
        (found,) = grad(value, x, create_graph=True, allow_unused=True)
        return _zeros_like(x) if found is None else found

    return jacobian(gradient, inputs)


# --- numerical checks -------------------------------------------------------------------------------------


class GradcheckError(AcceleraError, AssertionError):
    """Gradients of a function differ from its finite differences."""


def _is_differentiable(each: Any) -> bool:
    return isinstance(each, Tensor) and bool(each.requires_grad)


def _central_differences(
    function: Callable[..., Any], inputs: list[Any], i: int, weight: Any, eps: float
) -> Tensor:
    """Gradient of ``sum(weight * function)`` with respect to input `i`, by central differences."""
    x = inputs[i]
    base = native.copy(x.detach())
    flat = native.reshape(base, (x.size,))
    is_complex = str(x.dtype.name).startswith("complex")
    result = native.full((x.size,), 0, x.dtype)

    def value(at: int, step: Any) -> complex:
        moved = native.copy(flat)
        moved[at] = moved[at].item() + step
        given = [*inputs]
        given[i] = native.reshape(moved, tuple(x.shape))
        given = [each.detach() if isinstance(each, Tensor) else each for each in given]
        out = function(*given)
        product = native.multiply(native.conj(out), weight)
        return complex(native.sum(product).item())

    for at in range(x.size):
        slope: complex = (value(at, eps) - value(at, -eps)).real / (2 * eps)
        if is_complex:
            slope = complex(slope, (value(at, 1j * eps) - value(at, -1j * eps)).real / (2 * eps))
        result[at] = slope
    return native.reshape(result, tuple(x.shape))


def _output_weights(output: Any) -> Tensor:
    """Return a weight for each element of an output: all different, and the same in every run."""
    n = max(output.size, 1)
    values = [0.5 + ((i * 7919 + 13) % 101) / 101 for i in range(n)][: output.size]
    if output.dtype.name.startswith("complex"):
        values = [complex(a, 1 - a) for a in values]  # type: ignore[misc]
    return native.reshape(native.asarray(values, output.dtype), tuple(output.shape))


def _is_close(a: Any, b: Any, atol: float, rtol: float) -> bool:
    gap = native.abs(native.subtract(a, b))
    most = native.add(native.multiply(native.abs(b), rtol), atol)
    return bool(native.all(native.less_equal(gap, most)).item())


def gradcheck(
    function: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare gradients with central differences, in double precision.

    Parameters
    ----------
    function
        Takes the inputs; returns a tensor or a tuple of tensors.
    inputs
        A tensor or a sequence of arguments; those with ``requires_grad=True`` are checked. They should be
        float64 or complex128.
    eps
        Step of the differences.
    atol, rtol
        Agreement: ``|analytic - numerical| <= atol + rtol * |numerical|``.
    raise_exception
        Raise `GradcheckError` with both gradients; otherwise return False.

    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    checked = [i for i, each in enumerate(given) if _is_differentiable(each)]
    if not checked:
        raise ArgumentError(
            "[gradcheck] no input requires gradients; set requires_grad=True on those to check"
        )
    leaves = [_new_leaves(each)[0] if i in checked else each for i, each in enumerate(given)]
    n_outputs = len(_as_list(function(*leaves)))
    for k in range(n_outputs):

        def one(*args: Any, k: int = k) -> Tensor:
            return _as_list(function(*args))[k]

        output = one(*leaves)
        if not output.requires_grad:
            continue
        weight = _output_weights(output)
        found = grad(output, [leaves[i] for i in checked], weight, allow_unused=True)
        for i, analytic in zip(checked, found, strict=True):
            numerical = _central_differences(one, leaves, i, weight, eps)
            analytic = _zeros_like(leaves[i]) if analytic is None else analytic
            if not _is_close(analytic, numerical, atol, rtol):
                if not raise_exception:
                    return False
                raise GradcheckError(
                    f"[gradcheck] gradient of output {k} with respect to input {i}: computed "
                    f"{analytic.tolist()}, by differences {numerical.tolist()}"
                )
    return True


def gradgradcheck(function: Callable[..., Any], inputs: Tensor | Sequence[Tensor], **options: Any) -> bool:
    """`gradcheck` of the function's gradients, for its inputs and for the weights of its outputs."""
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    checked = [i for i, each in enumerate(given) if _is_differentiable(each)]
    outputs = [each for each in _as_list(function(*given)) if each.requires_grad]
    weights = _new_leaves([_output_weights(each) for each in outputs])

    def gradients(*args: Any) -> tuple[Any, ...]:
        own, w = list(args[: len(given)]), list(args[len(given) :])
        own = _differentiable_at(own, checked)
        made = [each for each in _as_list(function(*own)) if each.requires_grad]
        with enable_grad():
            found = grad(made, [own[i] for i in checked], w, create_graph=True, allow_unused=True)
        return tuple(each for each in found if each is not None)

    return gradcheck(gradients, [*given, *weights], **options)


def _differentiable_at(args: list[Any], checked: list[int]) -> list[Any]:
    return [_differentiable_inputs([each])[0] if i in checked else each for i, each in enumerate(args)]
