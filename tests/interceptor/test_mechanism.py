"""Calls of torch are caught wherever they come from, handed over whole, and left alone otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from accelera.errors import BudgetExceededError, SettingError, UnknownNameError
from accelera.interceptor import hooks
from accelera.interceptor.hooks import OPERATORS
from tests.interceptor.tiers import dumps, recording
from tests.threads import run_in_threads

pytestmark = [
    pytest.mark.usefixtures("each_tier"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning"),
]

Call = Callable[[], Any]


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """Catch everything and note it; each call is then computed by the original kernel."""
    heard: list[str] = []
    hooks.arm(recording(heard), 0, 0)
    yield heard
    hooks.disarm()


def matrix(rows: int = 6, columns: int = 6, *, grad: bool = False) -> Tensor:
    with hooks.passing():
        values = torch.arange(rows * columns, dtype=torch.float64).reshape(rows, columns) / 7 - 2
    return values.requires_grad_(grad)


def test_torch_is_as_before_once_disarmed() -> None:
    before = dumps()
    for _ in range(2):
        hooks.arm(recording([]), 0, 0)
        assert dumps() != before
        hooks.disarm()
        assert dumps() == before
    hooks.disarm()
    assert dumps() == before


def test_arming_again_replaces_handlers_and_thresholds() -> None:
    first: list[str] = []
    second: list[str] = []
    hooks.arm({"mm": recording(first)["mm"]}, 0, 0)
    hooks.arm({"mm": recording(second)["mm"], "exp": recording(second)["exp"]}, 0, 0)
    torch.mm(matrix(), matrix()).exp()
    assert (first, second) == ([], ["mm", "exp"])
    hooks.arm({"exp": recording(first)["exp"]}, 0, 0)
    torch.mm(matrix(), matrix()).exp()
    assert (first, second) == (["exp"], ["mm", "exp"])
    hooks.arm({"exp": recording(first)["exp"]}, 1 << 40, 0)
    matrix().exp()
    assert first == ["exp"]


def test_small_calls_never_reach_python(calls: list[str]) -> None:
    a = torch.zeros(16, 4)
    of_call = (16 * 4 + 4 * 16 + 16 * 16) * 4
    for least_bytes, least_size, heard in ((of_call, 16, 1), (of_call + 1, 16, 0), (of_call, 17, 0)):
        calls.clear()
        hooks.arm(recording(calls), least_bytes, least_size)
        torch.mm(a, a.T)
        assert len(calls) == heard, (least_bytes, least_size)


@pytest.mark.parametrize(
    ("name", "call", "held"),
    [
        ("mm", lambda: torch.mm(torch.zeros(3, 0), torch.zeros(0, 5)), 15),
        ("bmm", lambda: torch.bmm(torch.zeros(2, 3, 4), torch.zeros(2, 4, 5)), 24 + 40 + 30),
        ("mv", lambda: torch.mv(torch.zeros(5, 4), torch.zeros(4)), 20 + 4 + 5),
        ("dot", lambda: torch.dot(torch.zeros(5), torch.zeros(5)), 5 + 5 + 1),
        (
            "addmm",
            lambda: torch.addmm(torch.zeros(5), torch.zeros(3, 4), torch.zeros(4, 5)),
            5 + 12 + 20 + 15,
        ),
        ("matmul", lambda: torch.zeros(2, 5, 3) @ torch.zeros(3, 7), 2 * 5 * 3 + 3 * 7 + 2 * 5 * 7),
        ("matmul", lambda: torch.zeros(2, 1, 5, 3) @ torch.zeros(4, 3, 7), 30 + 84 + 2 * 4 * 5 * 7),
        ("add.Tensor", lambda: torch.zeros(64, 1) + torch.zeros(1, 64), 64 + 64 + 64 * 64),
        ("add.Tensor", lambda: torch.zeros(64) + 1, 64 + 64),
        ("mul_.Tensor", lambda: torch.zeros(30).mul_(2), 30),
        ("_softmax", lambda: torch.zeros(10).softmax(0), 20),
        ("exp.out", lambda: torch.exp(torch.zeros(10), out=torch.empty(0)), 20),
        (
            "scaled_dot_product_attention",
            lambda: torch.nn.functional.scaled_dot_product_attention(*(3 * (torch.zeros(2, 8, 4),))),
            3 * 64 + 64 + 2 * 8 * 8,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_operands_and_result_count(name: str, call: Call, held: int) -> None:
    heard: list[str] = []
    handlers = {name: recording(heard)[name]}
    hooks.arm(handlers, 4 * held + 1, 0)
    call()
    assert heard == []
    hooks.arm(handlers, 4 * held, 0)
    call()
    assert heard == [name]


SITES: dict[str, tuple[Call, list[str]]] = {
    "mm": (lambda: torch.mm(matrix(), matrix()), ["mm"]),
    "method": (lambda: matrix().mm(matrix()), ["mm"]),
    "@": (lambda: matrix() @ matrix(), ["matmul", "mm"]),
    "batched @": (lambda: torch.ones(2, 3, 4) @ torch.ones(2, 4, 3), ["matmul", "bmm"]),
    "inference mode": (torch.inference_mode()(lambda: matrix() @ matrix()), ["matmul", "mm"]),
    "no_grad": (torch.no_grad()(lambda: matrix(grad=True) @ matrix()), ["matmul", "mm"]),
    "inner": (lambda: torch.inner(matrix(), matrix()), ["mm"]),
    "tensordot": (lambda: torch.tensordot(matrix(), matrix(), 1), ["mm"]),
    "einsum": (lambda: torch.einsum("ij,jk", matrix(), matrix()), ["bmm"]),
    "linear": (lambda: torch.nn.functional.linear(matrix(), matrix(), matrix()[0]), ["addmm"]),
    "torch.ops": (lambda: torch.ops.aten.mm(matrix(), matrix()), ["mm"]),
    "out=": (lambda: torch.mm(matrix(), matrix(), out=matrix()), ["mm.out"]),
    "in place": (lambda: matrix().addmm_(matrix(), matrix()), ["addmm_"]),
    "operator in place": (lambda: matrix().__iadd__(matrix()), ["add_.Tensor"]),
    "number": (lambda: matrix() + 1, ["add.Tensor"]),
    "number from the left": (lambda: 2 * matrix(), ["mul.Tensor"]),
    "division in place by a number": (lambda: matrix().div_(2, rounding_mode="floor"), ["div_.Tensor_mode"]),
    "choice of numbers": (lambda: torch.where(matrix() > 0, matrix(), 1.5), ["where.self"]),
    "softmax": (lambda: matrix().softmax(1), ["_softmax"]),
    "power": (lambda: 2 ** matrix(), ["pow.Scalar"]),
    "vmap": (lambda: torch.func.vmap(torch.mm)(torch.ones(2, 3, 3), torch.ones(2, 3, 3)), ["matmul", "bmm"]),
}


@pytest.mark.parametrize("site", SITES)
def test_calls_are_caught_and_answered_as_torch_does(site: str, calls: list[str]) -> None:
    call, expected = SITES[site]
    answer = call()
    assert calls == expected
    hooks.disarm()
    plain = call()
    assert answer.dtype == plain.dtype
    assert torch.equal(answer, plain)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("shape", [(3,), ()])
def test_numbers_are_promoted_as_torch_does(
    dtype: torch.dtype, shape: tuple[int, ...], calls: list[str]
) -> None:
    operand = torch.ones(shape, dtype=dtype)
    for number in (2, 0.1, True):
        caught = operand * number
        with hooks.passing():
            passed = operand * number
        hooks.arm(recording(calls), 1 << 40, 0)
        small = operand * number
        hooks.arm(recording(calls), 0, 0)
        assert caught.dtype == passed.dtype == small.dtype
        assert torch.equal(caught, passed)
        assert torch.equal(small, passed)
    assert calls == ["mul.Tensor"] * 3


def test_backward_is_caught(calls: list[str]) -> None:
    a, b = matrix(grad=True), matrix(grad=True)
    torch.mm(a, b).sum().backward()
    assert calls == ["mm", "mm", "mm"]
    assert a.grad is not None
    assert torch.equal(a.grad, torch.ones(6, 6, dtype=torch.float64) @ b.detach().T)


def test_second_derivatives_and_forward_mode_agree(calls: list[str]) -> None:
    a, b = matrix(2, 2, grad=True), matrix(2, 2, grad=True)
    assert torch.autograd.gradcheck(torch.matmul, (a, b), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(torch.matmul, (a, b))
    assert {"matmul", "mm"} <= set(calls)


def test_functional_transforms_agree(calls: list[str]) -> None:
    def loss(x: Tensor) -> Tensor:
        return (x @ x).tanh().sum()

    found = [
        torch.func.grad(loss)(matrix()),
        torch.func.hessian(loss)(matrix(2, 2)),
        torch.func.jacfwd(loss)(matrix()),
    ]
    assert calls
    with hooks.passing():
        again = [
            torch.func.grad(loss)(matrix()),
            torch.func.hessian(loss)(matrix(2, 2)),
            torch.func.jacfwd(loss)(matrix()),
        ]
    assert all(map(torch.equal, found, again))


def test_torchscript_is_caught(calls: list[str]) -> None:
    scripted = torch.jit.script(_scripted)
    assert torch.equal(scripted(matrix(), matrix()), torch.mm(matrix(), matrix()))
    assert calls == ["mm", "mm"]


def _scripted(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_is_caught_when_it_runs(backend: str, calls: list[str]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: torch.mm(a, b).exp(), backend=backend, fullgraph=True)
    compiled(matrix(), matrix())
    calls.clear()
    answer = compiled(matrix(), matrix())
    assert calls == ["mm", "exp"]
    assert torch.equal(answer, torch.mm(matrix(), matrix()).exp())


def test_fake_tensors_pass(calls: list[str]) -> None:
    with torch._subclasses.FakeTensorMode():
        a = torch.empty(1 << 20, 1 << 20)
        assert (a @ a + 1).shape == a.shape
    assert calls == []


def test_tensors_without_strides_pass(calls: list[str]) -> None:
    a = matrix()
    with hooks.passing():
        sparse, expected = a.to_sparse(), a @ a
    meta = torch.empty(4, 4, device="meta")
    calls.clear()
    answers = [torch.sparse.mm(sparse, a), sparse @ a, a @ sparse]
    assert (meta @ meta).is_meta
    assert calls == []
    hooks.disarm()
    assert all(torch.allclose(answer, expected) for answer in answers)


def test_other_threads_are_caught(calls: list[str]) -> None:
    with hooks.passing():
        run_in_threads(*[partial(torch.mm, matrix(), matrix())] * 4)
    assert calls == ["mm"] * 4


def test_passing_nests_and_ends_with_its_block(calls: list[str]) -> None:
    with hooks.passing():
        with hooks.passing():
            torch.mm(matrix(), matrix())
        torch.mm(matrix(), matrix())
        assert calls == []
    with pytest.raises(ZeroDivisionError), hooks.passing():
        raise ZeroDivisionError
    torch.mm(matrix(), matrix())
    assert calls == ["mm"]


def test_a_handler_is_not_intercepted_itself() -> None:
    heard: list[str] = []

    def squared(a: Tensor, b: Tensor) -> Tensor:
        heard.append("mm")
        return torch.mm(a, b) + torch.mm(a, b)

    hooks.arm({"mm": squared}, 0, 0)
    torch.mm(matrix(), matrix())
    hooks.disarm()
    assert heard == ["mm"]


def test_a_handler_above_autograd_has_its_products_looked_at() -> None:
    heard: list[str] = []

    def twice(a: Tensor, b: Tensor) -> Tensor:
        heard.append("matmul")
        return (a @ b) * 2

    hooks.arm({"matmul": twice, "mm": recording(heard)["mm"]}, 0, 0)
    a = matrix(grad=True)
    (a @ matrix()).sum().backward()
    hooks.disarm()
    assert heard == ["matmul", "mm", "mm"]
    assert a.grad is not None
    assert torch.equal(a.grad, 2 * torch.ones(6, 6, dtype=torch.float64) @ matrix().T)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["mm", "matmul", "mm.out"])
def test_a_handlers_error_arrives_untouched(name: str, grad: bool) -> None:
    error = BudgetExceededError("no room", needed_bytes=2, budget_bytes=1)

    def refuse(*_: Any, **__: Any) -> Tensor:
        raise error

    hooks.arm({name: refuse}, 0, 0)
    a = matrix(grad=grad and name != "mm.out")
    with pytest.raises(BudgetExceededError) as caught:
        torch.mm(a, a, out=matrix()) if name == "mm.out" else a @ a
    assert caught.value is error
    with pytest.raises(BudgetExceededError):
        torch.mm(a, a, out=matrix()) if name == "mm.out" else a @ a
    hooks.disarm()
    assert torch.equal(a.detach() @ a.detach(), matrix() @ matrix())


def test_a_handlers_error_arrives_from_backward() -> None:
    def refuse(a: Tensor, b: Tensor) -> Tensor:
        raise ZeroDivisionError("no")

    product = torch.mm(matrix(grad=True), matrix())
    hooks.arm({"mm": refuse}, 0, 0)
    with pytest.raises(ZeroDivisionError, match="no"):
        product.sum().backward()


def test_torchs_own_errors_arrive_untouched(calls: list[str]) -> None:
    wrong: list[Call] = [
        lambda: torch.mm(matrix(), matrix(5, 6)),
        lambda: matrix() @ matrix(5, 6),
        lambda: torch.mm(matrix(), matrix()[0]),
        lambda: matrix() + matrix(5, 5),
        lambda: torch.mm(matrix(), matrix().float()),
    ]
    for call in wrong:
        with pytest.raises(RuntimeError) as caught:
            call()
        with hooks.passing(), pytest.raises(RuntimeError) as plain:
            call()
        assert str(caught.value) == str(plain.value)


def test_errors_of_small_calls_are_torchs() -> None:
    hooks.arm(recording([]), 1 << 40, 1 << 20)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.mm(matrix(), matrix(5, 6))
    with pytest.raises(RuntimeError, match="must match the size"):
        matrix() + matrix(5, 5)


def test_the_original_is_called_as_the_operator_is() -> None:
    a = matrix(grad=True)
    for armed in (False, True):
        if armed:
            hooks.arm({"mm": None, "mm.out": None, "matmul": None}, 0, 0)  # type: ignore[dict-item]
        below = hooks.original("mm")(a, a)
        assert torch.equal(below, a.detach() @ a.detach() if not armed else below)
        assert not below.requires_grad
        out = torch.empty_like(below)
        assert hooks.original("mm.out")(a.detach(), a.detach(), out=out) is out
        assert torch.equal(out, below)
        with hooks.passing():
            assert hooks.original("matmul")(a, a).requires_grad


def test_arming_from_many_threads_leaves_torch_as_before() -> None:
    before = dumps()
    handlers = recording([])

    def repeat() -> None:
        for _ in range(3):
            hooks.arm(handlers, 1 << 40, 1)
            hooks.disarm()

    run_in_threads(*[repeat] * 4)
    assert dumps() == before


def test_unknown_operators_and_negative_thresholds_are_refused() -> None:
    before = dumps()
    with pytest.raises(UnknownNameError, match=r"did you mean.*'mm'"):
        hooks.arm({"mmm": torch.mm}, 0, 0)
    with pytest.raises(UnknownNameError):
        hooks.original("convolution")
    with pytest.raises(SettingError, match="least_bytes=-1"):
        hooks.arm({"mm": torch.mm}, -1, 0)
    assert dumps() == before


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_caught_by_its_own_name(name: str, calls: list[str]) -> None:
    before, _, after = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, before), after or "default")
    args, kwargs = _arguments(operator._schema)
    operator(*args, **kwargs)
    assert calls[0] == name


def _arguments(schema: Any) -> tuple[list[Any], dict[str, Any]]:
    """Make some arguments that fit a schema; matrices are square, so shapes always do."""
    packet = schema.name.removeprefix("aten::").rstrip("_")
    stacked = ("bmm", "baddbmm", "_native_multi_head_attention")
    first = (2, 3, 3) if packet in stacked else {"dot": (3,)}.get(packet, (3, 3))
    shapes: dict[str, Any] = {"vec": (3,), "tensor": (3,)} | ({"self": (3,)} if packet == "addmv" else {})
    shapes |= {"qkv_weight": (9, 3), "qkv_bias": (9,), "proj_weight": (3, 3), "proj_bias": (3,)}
    number = 3 if packet == "_native_multi_head_attention" else 1
    values = {"ScalarType": torch.float32, "int": number, "bool": False, "number": 2, "Optional[str]": None}
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for each in schema.arguments:
        if each.has_default_value():
            continue
        kind = str(each.type)
        value = torch.ones(shapes.get(each.name, first)) if kind == "Tensor" else values.get(kind)
        if each.name == "condition":
            value = value > 0
        if each.kwarg_only:
            kwargs[each.name] = torch.empty(0) if kind == "Tensor" else value
        else:
            args.append(value)
    return args, kwargs


def test_threads_calculate_while_another_arms_and_disarms() -> None:
    handlers, a, wrong = recording([]), matrix(), []
    product, over = a @ a, threading.Event()

    def calculate() -> None:
        while not over.is_set():
            if not torch.equal(a @ a, product) or (a + 1).dtype != a.dtype:
                wrong.append(a @ a)

    threads = [threading.Thread(target=calculate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(6):
        hooks.arm(handlers, 0 if turn % 2 else 1 << 40, 0)
        hooks.disarm()
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong
