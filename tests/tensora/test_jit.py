"""Captured functions: a replay has the results, gradients and memory of the function as it is written."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import captured_function, functional, nn, optim
from tests.tensora.more_samples import MORE
from tests.tensora.op_samples import SAMPLES
from tests.tensora.random_programs import check_same, programs, run_program, values
from tests.tensora.window_samples import WINDOW_SAMPLES

pytestmark = pytest.mark.parametrize("fusion", ["eager"], indirect=True)


# --- random programs -----------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs, n_results=st.integers(1, 3), side=st.sampled_from([3, 40]))
def test_replay_of_random_programs_has_the_bits_of_the_function(program, n_results, side):
    def function(x, y):
        return run_program(program, [x, y])[-n_results:]

    optimized, plain = ts.jit(function), ts.jit(function, optimize=False)
    for seed in range(3):
        inputs = [values((side, side), seed), values((side, side), 10 + seed)]
        wanted = function(*inputs)
        check_same(optimized(*inputs), wanted)
        check_same(plain(*inputs), wanted)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs, side=st.sampled_from([3, 40]))
def test_gradients_through_random_programs_have_the_bits_of_the_function(program, side):
    def gradients(function, seed):
        leaves = [values((side, side), seed), values((side, side), 10 + seed)]
        for leaf in leaves:
            leaf.requires_grad = True
        result = function(*(leaf * 1.0 for leaf in leaves))
        if result.requires_grad:
            (result * result).sum().backward()
        return [result.detach(), *(ts.zeros(()) if leaf.grad is None else leaf.grad for leaf in leaves)]

    def function(x, y):
        return run_program(program, [x, y])[-1]

    optimized, plain = ts.jit(function), ts.jit(function, optimize=False)
    for seed in range(3):
        wanted = gradients(function, seed)
        check_same(gradients(optimized, seed), wanted)
        check_same(gradients(plain, seed), wanted)


def program_step(program, leaves):
    """A step of training by the last value of a generated program, of which the leaves are the inputs."""
    for leaf in leaves:
        leaf.requires_grad = True
    optimizer = optim.SGD(leaves, lr=0.01, momentum=0.9)

    def step(scale):
        optimizer.zero_grad()
        loss = (run_program(program, [leaf * scale for leaf in leaves])[-1] ** 2).mean()
        if loss.requires_grad:
            loss.backward()
            optimizer.step()
        return loss

    return step


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs, side=st.sampled_from([3, 40]))
def test_a_whole_step_of_random_programs_has_the_bits_of_the_function(program, side):
    def trained(wrap):
        leaves = [values((side, side), 1), values((side, side), 2)]
        run = wrap(program_step(program, leaves))
        return [run(ts.asarray(np.float32(1 + 0.1 * i))).detach() for i in range(4)] + leaves

    wanted = trained(lambda step: step)
    check_same([each.detach() for each in trained(ts.jit)], [each.detach() for each in wanted])


# --- every entry of the op table, and modules ----------------------------------------------------------

CASES = [
    pytest.param(name, each, id=f"{name}-{i}")
    for name, samples in (SAMPLES | WINDOW_SAMPLES | MORE).items()
    for i, each in enumerate(samples)
]
READS_ELEMENTS = {"put"}
"""Entries whose gradient depends on elements in Python."""


def given_tensors(sample, seed, dtype="float32"):
    arrays = sample.inputs(dtype, seed)
    tensors = [ts.asarray(each) for each in arrays]
    for i, each in enumerate(tensors):
        if i not in sample.fixed and sample.gradient and not dtype.startswith("int"):
            each.requires_grad = True
    return tensors


def values_and_gradients(function, tensors):
    result = function(*tensors)
    if result.requires_grad:
        (result * 1.5).sum().backward()
    return [result.detach(), *(each.grad for each in tensors if each.grad is not None)]


def element_type(sample):
    """A type that the sample's operation is defined for."""
    for dtype in ("float32", "int32", "complex64"):
        try:
            sample.call(*given_tensors(sample, 0, dtype))
        except TypeError as error:
            if "not defined for" not in str(error):
                raise
        else:
            return dtype
    raise AssertionError(sample)


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_every_entry_replays(name, sample):
    jitted, dtype = ts.jit(sample.call), element_type(sample)
    if name in READS_ELEMENTS:
        with pytest.raises(RuntimeError, match=r"\[jit\] "):
            values_and_gradients(jitted, given_tensors(sample, 0, dtype))
        return
    for seed in range(3):
        wanted = values_and_gradients(sample.call, given_tensors(sample, seed, dtype))
        check_same(values_and_gradients(jitted, given_tensors(sample, seed, dtype)), wanted)


MODULES = {
    "linear": (lambda: nn.Linear(6, 5), (4, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (2, 3, 9)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), (2, 3, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (2, 3, 5, 5)),
    "batch_norm": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "layer_norm": (lambda: nn.LayerNorm(6), (4, 6)),
    "rms_norm": (lambda: nn.RMSNorm(6), (4, 6)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "instance_norm": (lambda: nn.InstanceNorm1d(4), (3, 4, 5)),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4)), (5, 6)),
    "lstm": (lambda: First(nn.LSTM(6, 5)), (7, 2, 6)),
    "gru": (lambda: First(nn.GRU(6, 5, bidirectional=True)), (7, 2, 6)),
    "attention": (lambda: Twice(nn.MultiheadAttention(8, 2, batch_first=True)), (2, 5, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), (2, 5, 8)),
    "adaptive_pool": (lambda: nn.AdaptiveAvgPool2d(3), (2, 3, 7, 8)),
}


class First(nn.Module):
    """The first result of a recurrent network."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


class Twice(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


def passes_of(module, run, inputs):
    """Results and gradients of each pass through a module, which is called as ``run``, and its last state."""
    found = []
    for x in inputs:
        x.requires_grad = True
        out = run(x)
        (out * out).sum().backward()
        found += [out.detach(), x.grad]
        for each in module.parameters():
            if each.grad is not None:
                found.append(each.grad)
            each.grad = None
    return found + [each.detach() for each in module.state_dict().values()]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_modules_train_alike(name, training):
    make, shape = MODULES[name]

    def trained(wrap):
        ts.random.manual_seed(3)
        module = make().train(training)
        return passes_of(module, wrap(module), [values(shape, seed) for seed in range(4)])

    check_same(trained(ts.jit), trained(lambda module: module))


# --- memory --------------------------------------------------------------------------------------------


def network(seed=0):
    ts.random.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64), nn.Tanh())


def training_step(module, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = ((module(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("mode", ["eager", "jit", "budget"])
def test_batch_norm_averages_all_batches(mode):
    reference, module = torch.nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4, momentum=None)
    call = ts.jit(lambda x: module(x)) if mode == "jit" else module
    for seed in range(4):
        batch = np.random.default_rng(seed).normal(size=(8, 4)).astype("f4")
        reference(torch.from_numpy(batch))
        with ts.budget("1MiB") if mode == "budget" else contextlib.nullcontext():
            call(ts.asarray(batch))
    np.testing.assert_allclose(module.running_mean.numpy(), np.asarray(reference.running_mean), rtol=1e-5)
    np.testing.assert_allclose(module.running_var.numpy(), np.asarray(reference.running_var), rtol=1e-5)


def test_a_call_allocates_at_most_what_was_planned():
    module = network()
    step = ts.jit(training_step(module, optim.SGD(module.parameters(), lr=0.01)))
    x, y = values((512, 64), 1), values((512, 64), 2)
    step(x, y)
    report = step.report(x, y)
    module.zero_grad()
    before = ts.memory_stats().live_bytes
    ts.reset_peak()
    step(x, y)
    measured = ts.memory_stats().peak_bytes - before
    assert report.arena_bytes + report.kept_bytes <= measured <= report.peak_bytes
    assert report.least_bytes <= report.arena_bytes <= 1.25 * report.least_bytes


def test_a_captured_step_needs_about_the_memory_of_the_function():
    x, y = values((512, 64), 1), values((512, 64), 2)

    def peak(wrap):
        module = network()
        step = wrap(training_step(module, optim.SGD(module.parameters(), lr=0.01)))
        for _ in range(2):
            step(x, y)
        before = ts.memory_stats().live_bytes - sum(each.grad.nbytes for each in module.parameters())
        ts.reset_peak()
        step(x, y)
        return ts.memory_stats().peak_bytes - before

    assert peak(ts.jit) <= 1.15 * peak(lambda step: step)


def test_memory_of_a_forward_pass_ends_with_its_result():
    module = network()
    run = ts.jit(module)
    x = values((64, 64), 1)
    run(x)
    before = ts.memory_stats().live_bytes
    out = run(x)
    assert ts.memory_stats().live_bytes > before + out.nbytes
    del out
    assert ts.memory_stats().live_bytes == before


def test_chains_are_fused_and_dead_and_common_steps_are_gone():
    def function(x):
        ts.exp(x)
        a = ts.tanh(x) * 2 + 1
        b = ts.tanh(x) * 3
        return a * b

    jitted = ts.jit(function)
    x = values((40, 40))
    jitted(x)
    report = jitted.report(x)
    assert report.steps == 1
    assert report.program.count("tanh") == 1
    assert "exp" not in report.program
    assert report.arena_bytes == 0
    assert "peak" in str(report)


def test_intermediates_of_a_chain_are_computed_again_in_the_backward_pass():
    def function(x):
        y = x * 0.5 * (1 + ts.tanh(0.79788 * (x + 0.044715 * x * x * x)))
        return ts.matmul(y, y)

    x = values((128, 128))
    x.requires_grad = True

    def step(x):
        x.grad = None
        function(x).sum().backward()

    jitted, plain = ts.jit(step), ts.jit(step, optimize=False)
    jitted(x), plain(x)
    assert jitted.report(x).arena_bytes < 0.5 * plain.report(x).arena_bytes


# --- loops over products -------------------------------------------------------------------------------

PANEL_ELEMENTS = {"float32": 1 << 17, "float64": 1 << 16}


@pytest.fixture
def two_threads():
    """Panels are as many as threads want."""
    before = ts.get_num_threads()
    if before != 2:
        ts.set_num_threads(2)
    yield
    if before != 2:
        ts.set_num_threads(before)


def test_a_product_and_the_loop_over_it_hold_one_buffer(two_threads):
    for inner, name in ((64, "linear + fused[gelu]"), (512, " <- gelu(")):
        weight, bias = values((256, inner), 1), values((256,), 2)

        def function(x, weight=weight, bias=bias):
            return functional.gelu(functional.linear(x, weight, bias))

        jitted, x = ts.jit(function), values((4096, inner), 3)
        wanted = jitted(x)
        report = jitted.report(x)
        assert name in report.program
        assert report.arena_bytes == report.workspace_bytes == 0
        assert wanted.nbytes <= report.peak_bytes <= 1.25 * wanted.nbytes
        before = ts.memory_stats().live_bytes
        ts.reset_peak()
        found = jitted(x)
        assert ts.memory_stats().peak_bytes - before <= report.peak_bytes
        check_same([found], [wanted])


def test_loops_write_over_operands_that_are_read_for_the_last_time():
    def function(x):
        y = ts.cumulative_sum(x, axis=0)
        z = ts.tanh(y) * x + ts.exp(x)
        return ts.cumulative_sum(z, axis=1)

    jitted, x = ts.jit(function), values((64, 64))
    check_same([jitted(x)], [jitted(x)])
    report = jitted.report(x)
    assert " <- fused[" in report.program
    assert report.arena_bytes < 1.25 * x.nbytes


def test_a_loop_writes_over_no_operand_that_it_reads_afterwards():
    """The first result is stored before the last step reads the operand, and no other may take its place."""

    def function(x):
        y = ts.cumulative_sum(x, axis=0)
        first = ts.exp(y)
        return ts.cumulative_sum(first, axis=0), ts.cumulative_sum(first * y, axis=1)

    jitted = ts.jit(function)
    for seed in range(2):
        check_same(jitted(values((64, 64), seed)), function(values((64, 64), seed)))


def test_the_loop_of_a_backward_pass_is_an_epilogue_too(two_threads):
    module = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    x = values((4096, 64), 1)

    def step(x):
        module.zero_grad()
        (module(x) ** 2).sum().backward()
        return [each.grad for each in module.parameters()]

    jitted = ts.jit(step)
    jitted(x)
    assert "matmul + fused[gelu_backward" in jitted.report(x).program
    check_same(jitted(x), step(x))


def test_a_loop_that_reads_the_product_in_two_ways_is_no_epilogue(two_threads):
    weight, x = values((256, 64), 1), values((4096, 64), 2)

    def function(x):
        made = functional.linear(x, weight)
        return made * 2 + made[-1:]

    jitted = ts.jit(function)
    jitted(x)
    assert "linear +" not in jitted.report(x).program
    check_same([jitted(x)], [function(x)])


products = st.fixed_dictionaries(
    {
        "inner": st.sampled_from([1, 8, 32, 63, 64, 65, 200]),
        "columns": st.sampled_from([40, 128, 250, 1024]),
        "panels": st.sampled_from([0.01, 0.9, 7.9, 8.2, 9.7]),
        "dtype": st.sampled_from(["float32", "float64", "bfloat16"]),
        "kind": st.sampled_from(["linear", "biased", "transposed", "rows", "batch", "heads"]),
        "loop": st.lists(
            st.sampled_from(["gelu", "tanh", "full", "row", "column", "scalar", "residual", "first_row"]),
            max_size=4,
        ),
        "gradients": st.booleans(),
    }
)


def product(kind, x, weight, bias):
    if kind in {"linear", "biased"}:
        return functional.linear(x, weight, bias if kind == "biased" else None)
    if kind == "rows":
        return functional.linear(x.reshape((2, -1, x.shape[1])), weight).reshape((-1, weight.shape[0]))
    if kind == "batch":
        return ts.matmul(x.reshape((2, -1, x.shape[1])), weight.T)
    if kind == "heads":
        y = x.reshape((8, -1, x.shape[1]))
        return ts.matmul(y, ts.stack([weight, weight * 2] * 4).permute(0, 2, 1))
    return ts.matmul(x, weight.T)


def looped(names, made, others):
    x = made
    for name in names:
        if name in {"gelu", "tanh"}:
            x = functional.gelu(x) if name == "gelu" else ts.tanh(x)
        elif name in {"residual", "first_row"}:
            x = x + (made if name == "residual" else made[..., :1, :])
        else:
            x = x * others[name].reshape(made.shape) if name == "full" else x * others[name]
    return x


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=products)
def test_products_with_epilogues_have_the_bits_of_the_function(case, two_threads):
    columns = case["columns"]
    batch = {"batch": 2, "heads": 8}.get(case["kind"], 1)
    elements = case["panels"] * PANEL_ELEMENTS.get(case["dtype"], 1 << 17) * (2 if batch == 2 else 1)
    rows = max(2, int(elements / columns / batch)) * batch // 2 * 2
    shapes = {"x": (rows, case["inner"]), "weight": (columns, case["inner"]), "bias": (columns,)}
    shapes |= {"full": (rows, columns), "row": (columns,), "column": (rows // batch, 1), "scalar": ()}

    def function(given):
        made = product(case["kind"], given["x"], given["weight"], given["bias"])
        return looped(case["loop"], made, given)

    def found(call, seed):
        given = {
            name: values(shape, seed + i).to(case["dtype"]) for i, (name, shape) in enumerate(shapes.items())
        }
        for name in ("x", "weight", "row") if case["gradients"] else ():
            given[name].requires_grad = True
        result = call(given)
        if case["gradients"]:
            (result * result).sum().backward()
        return [result.detach(), *(each.grad for each in given.values() if each.grad is not None)]

    jitted, plain = ts.jit(function), ts.jit(function, optimize=False)
    for seed in range(2):
        wanted = found(function, seed)
        check_same(found(jitted, seed), wanted)
        check_same(found(plain, seed), wanted)


# --- what is guarded -----------------------------------------------------------------------------------


def test_signatures_are_told_apart():
    @ts.jit
    def function(x, power, scale=1.0):
        return x**power * scale

    for x in (values((3,)), values((4,)), values((3,), dtype="float64")):
        for power in (2, 3):
            for _ in range(2):
                check_same([function(x, power, scale=2.0)], [x**power * 2.0])
    assert function._n_programs == 6


def test_train_and_eval_are_told_apart():
    module = nn.Dropout(0.5)
    run = ts.jit(module)
    x = ts.ones((100,))
    for _ in range(2):
        assert (run(x) == 0).any()
    module.eval()
    for _ in range(2):
        check_same([run(x)], [x])


class Scaled(nn.Module):
    """Module with a captured method."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.linear = nn.Linear(4, 4)

    @ts.jit
    def forward(self, x):
        return self.linear(self.drop(x))


def test_modules_that_are_given_or_stand_in_lists_are_told_apart():
    module, x = Scaled(), ts.ones((200, 4))
    drops = [nn.Dropout(0.5)]
    listed = ts.jit(lambda x: drops[0](x))
    for _ in range(2):
        assert (module(x) != module.linear(x)).any()
        assert (listed(x) == 0).any()
    module.eval()
    drops[0].eval()
    for _ in range(2):
        check_same([module(x).detach(), listed(x)], [module.linear(x).detach(), x])
    module.linear = nn.Linear(4, 4)
    check_same([module(x).detach()], [module.linear(x).detach()])


def test_leaves_and_computed_arguments_are_told_apart():
    @ts.jit
    def step(x):
        (x * x).sum().backward()

    def leaf():
        x = values((5,))
        x.requires_grad = True
        return x

    for _ in range(2):
        x = leaf()
        step(x)
        check_same([x.grad], [2 * x.detach()])
        step(leaf() * 1.0)


def test_gradients_of_two_calls_that_drop_them_add_up():
    module = nn.Linear(3, 1)

    def loss(x):
        module.zero_grad()
        return module(x).sum()

    captured = ts.jit(loss)
    inputs = [values((4, 3), seed) for seed in range(2)]
    for call in (captured, captured, loss):
        first, second = call(inputs[0]), call(inputs[1])
        first.backward()
        second.backward()
        found = [each.grad for each in module.parameters()]
        if call is captured:
            wanted = found
    check_same(found, wanted)


def test_dropout_draws_anew():
    run = ts.jit(nn.Dropout(0.5))
    x = ts.ones((1000,))
    masks = [np.asarray(run(x)) for _ in range(4)]
    assert all((a != b).any() for a, b in itertools.pairwise(masks))


def test_gradients_accumulate():
    module = network()

    def step(x):
        loss = module(x).sum()
        loss.backward()

    jitted = ts.jit(step)
    for wrap in (jitted, step):
        module.zero_grad()
        found = []
        for cycle in range(2):
            for i in range(3):
                wrap(values((8, 64), 10 * cycle + i))
            found += [each.grad for each in module.parameters()]
            module.zero_grad()
        if wrap is jitted:
            wanted = found
    check_same(found, wanted)
    assert jitted._n_programs == 2  # with gradients from before, and without


def test_parameters_are_read_where_they_are():
    module = nn.Linear(4, 4)
    run = ts.jit(module)
    x = values((3, 4))
    run(x)
    with ts.no_grad():
        module.weight *= 2
    check_same([run(x).detach()], [module(x).detach()])
    module.weight = nn.Parameter(values((4, 4), 9))
    check_same([run(x).detach()], [module(x).detach()])


def test_arguments_are_written_in_place():
    @ts.jit
    def function(x, y):
        x += y
        x[0] = 0
        return x

    for seed in range(3):
        x, y = values((4, 4), seed), values((4, 4), 5)
        wanted = np.array(x) + np.asarray(y)
        wanted[0] = 0
        assert function(x, y) is x
        np.testing.assert_array_equal(np.asarray(x), wanted)


def test_what_depends_on_elements_is_refused():
    @ts.jit
    def branch(x):
        return x if x.sum() > 0 else -x

    @ts.jit
    def sized(x):
        return x[x > 0]

    @ts.jit
    def exported(x):
        return np.asarray(x * 2)

    for function in (branch, sized, exported):
        with pytest.raises(RuntimeError, match=r"\[jit\] .*each call computes anew"):
            function(values((5,)))
    check_same([ts.jit(lambda x: x * 2)(values((5,)))], [values((5,)) * 2])


def test_an_index_out_of_range_raises_in_a_replay():
    @ts.jit
    def rows(table, index):
        return ts.take(table, index, axis=0)

    table = values((5, 3))
    check_same([rows(table, ts.asarray([0, 4, -1]))], [table[ts.asarray([0, 4, 4])]])
    check_same([rows(table, ts.asarray([-5, 1, 2]))], [table[ts.asarray([0, 1, 2])]])
    with pytest.raises(IndexError, match="index 7 of an axis with 5"):
        rows(table, ts.asarray([0, 7, 1]))
    check_same([rows(table, ts.asarray([1, 1, 1]))], [table[ts.asarray([1, 1, 1])]])


def test_arguments_that_share_memory():
    @ts.jit
    def function(x, y):
        return x * 2 + y

    @ts.jit
    def written(x, y):
        x += 1
        return y * 2

    for seed in range(3):
        x = values((6, 4), seed)
        for pair in ((x, x), (x[1:], x[:-1]), (x[:3], x[3:]), (x, x.reshape((6, 4)))):
            check_same([function(*pair)], [pair[0] * 2 + pair[1]])
        wanted = (x + 1) * 2
        check_same([written(x, x)], [wanted])


def test_a_second_backward_pass_and_writes_before_it_are_refused():
    @ts.jit
    def function(x):
        return ts.tanh(x) * x

    def forward():
        x = values((4, 4))
        x.requires_grad = True
        return x, function(x)

    forward()
    x, out = forward()
    out.sum().backward()
    with pytest.raises(RuntimeError):
        out.sum().backward()
    x, out = forward()
    with ts.no_grad():
        x += 1
    with pytest.raises(RuntimeError, match="written in place"):
        out.sum().backward()


def gradients_of_late_backward_passes(module, call, inputs):
    """Gradients of several forward passes, whose backward passes come after all of them."""
    module.zero_grad()
    outs = [call(x) for x in inputs]
    for out in reversed(outs):
        (out**2).sum().backward()
    return [each.grad for each in module.parameters()]


def test_two_forward_passes_before_their_backward_passes():
    module = network()
    run = ts.jit(module)
    inputs = [values((8, 64), seed) for seed in range(4)]
    run(inputs[0])
    check_same(*(gradients_of_late_backward_passes(module, call, inputs) for call in (run, module)))


def test_optimizers_and_schedules_step_in_python():
    def trained(wrap):
        module = network()
        optimizer = optim.AdamW(module.parameters(), lr=0.01)
        schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        x, y = values((16, 64), 1), values((16, 64), 2)

        def step(x, y):
            loss = ((module(x) - y) ** 2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            return loss

        run = wrap(step)
        losses = [run(x, y).detach() for _ in range(6)]
        assert all(each.grad is None for each in module.parameters())
        return losses + [each.detach() for each in module.parameters()] + [ts.asarray(schedule.get_last_lr())]

    check_same(trained(ts.jit), trained(lambda step: step))


def test_a_step_with_a_closure_or_a_scaler_is_refused():
    module = network()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match=r"Optimizer.step with arguments"):
        ts.jit(lambda: optimizer.step(lambda: None))()
    with pytest.raises(RuntimeError, match=r"GradScaler.scale cannot be captured"):
        ts.jit(lambda x: ts.GradScaler().scale(x))(values((3,)))


def test_inside_a_budget_or_a_record_the_function_runs_as_written():
    calls = []

    @ts.jit
    def function(x):
        calls.append(1)
        return ts.tanh(x) + 1

    x = values((8, 8))
    wanted = [ts.tanh(x) + 1]
    function(x)
    with ts.Recording():
        check_same([function(x)], wanted)
    with ts.autocast():
        check_same([function(x)], wanted)
    assert len(calls) == 3


def test_results_keep_their_structure():
    @ts.jit
    def function(x):
        return {"a": [x, x + 1], "b": (x * 2, 7, None)}

    x = values((3,))
    for _ in range(2):
        found = function(x)
        assert found["a"][0] is x
        assert found["b"][1:] == (7, None)
        check_same([found["a"][1], found["b"][0]], [x + 1, x * 2])


def test_too_many_signatures_run_as_written():
    @ts.jit
    def function(x, n):
        return x * n

    x = values((3,))
    for _ in range(2):
        for n in range(20):
            check_same([function(x, n)], [x * n])
    assert function._n_programs == captured_function.MOST_PROGRAMS


def test_a_report_needs_a_call():
    with pytest.raises(RuntimeError, match="was not called with such arguments yet"):
        ts.jit(lambda x: x).report(values((3,)))


def test_a_value_that_cannot_be_a_key_is_refused():
    with pytest.raises(TypeError, match="a value of type set"):
        ts.jit(lambda x: x)({1})
