"""Captured functions on a CUDA device: a real one, or the emulator's."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import accelera.tensora as ts
from accelera.tensora import functional, nn, optim
from accelera.tensora.core import native
from tests.tensora import emulator
from tests.tensora.test_jit import (
    CASES,
    MODULES,
    READS_ELEMENTS,
    element_type,
    given_tensors,
    gradients_of_late_backward_passes,
    network,
    passes_of,
    program_step,
    programs,
    run_program,
    training_step,
    values,
    values_and_gradients,
)
from tests.threads import run_in_threads

pytestmark = pytest.mark.parametrize("fusion", ["eager"], indirect=True)
CALLS = 4
"""Of a captured function: as written, replayed and watched, and twice as it goes on from there."""
random_programs = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check_close(found, wanted, tolerance=2e-5):
    """The same numbers, up to the order of sums in fused loops; on the same device."""
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        assert a.device == b.device
        one, other = (np.asarray(each.detach().to("cpu")) for each in (a, b))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def on(device, x):
    moved = x.detach().to(device)
    moved.requires_grad = x.requires_grad
    return moved


def deep(x, y):
    """Operations of which few can be fused: enough for a graph."""
    for _ in range(3):
        x = functional.softmax(ts.matmul(x, y), -1).T
    return x * x.sum(axis=0, keepdims=True)


@random_programs
@given(program=programs)
def test_random_programs(program, device):
    def function(x, y):
        return run_program(program, [x, y])[-2:]

    optimized, plain = ts.jit(function), ts.jit(function, optimize=False)
    for seed in range(CALLS):
        inputs = [on(device, values((5, 5), seed)), on(device, values((5, 5), 10 + seed))]
        wanted = function(*inputs)
        check_close(optimized(*inputs), wanted)
        check_close(plain(*inputs), wanted)


@random_programs
@given(program=programs)
def test_whole_steps_of_random_programs(program, device):
    def trained(wrap):
        leaves = [on(device, values((5, 5), seed)) for seed in (1, 2)]
        run = wrap(program_step(program, leaves))
        scales = [on(device, ts.asarray(np.float32(1 + 0.1 * i))) for i in range(CALLS)]
        return [run(scale).detach() for scale in scales] + [leaf.detach() for leaf in leaves]

    check_close(trained(ts.jit), trained(lambda step: step), 1e-4)


@pytest.mark.parametrize(("name", "sample"), [case for case in CASES if case.id.endswith("-0")])
def test_every_entry_replays(name, sample, device, monkeypatch):
    asarray = native.asarray
    dtype = element_type(sample)
    monkeypatch.setattr(native, "asarray", lambda *args: asarray(*args).to(device))  # indices in samples
    jitted = ts.jit(sample.call)
    if name in READS_ELEMENTS:
        with pytest.raises(RuntimeError, match=r"\[jit\] "):
            values_and_gradients(jitted, [on(device, x) for x in given_tensors(sample, 0, dtype)])
        return
    for seed in range(3):
        inputs = [on(device, x) for x in given_tensors(sample, seed, dtype)]
        copies = [on(device, x) for x in inputs]
        check_close(values_and_gradients(jitted, copies), values_and_gradients(sample.call, inputs), 1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_modules_train_alike(name, device):
    make, shape = MODULES[name]

    def trained(wrap):
        ts.random.manual_seed(3)
        module = make().to(device)
        return passes_of(module, wrap(module), [on(device, values(shape, seed)) for seed in range(CALLS)])

    check_close(trained(ts.jit), trained(lambda module: module), 1e-4)


@pytest.mark.parametrize("make", [optim.SGD, optim.AdamW])
def test_training_steps(make, device):
    x, y = (on(device, values((16, 64), seed)) for seed in (1, 2))

    def trained(wrap):
        module = network().to(device)
        step = wrap(training_step(module, make(module.parameters(), lr=0.01)))
        return [step(x, y).detach() for _ in range(6)] + [each.detach() for each in module.parameters()]

    check_close(trained(ts.jit), trained(lambda step: step), 1e-4)


def test_chains_are_one_kernel_and_memory_is_planned(device):
    module = network().to(device)
    step = ts.jit(training_step(module, optim.SGD(module.parameters(), lr=0.01)))
    x, y = (on(device, values((128, 64), seed)) for seed in (1, 2))
    plain = ts.jit(training_step(module, optim.SGD(module.parameters(), lr=0.01)), optimize=False)
    plain(x, y), step(x, y)
    report = step.report(x, y)
    assert report.steps < plain.report(x, y).steps
    assert "fused[" in report.program
    assert report.least_bytes <= report.arena_bytes <= 1.25 * report.least_bytes


def test_steps_without_a_kernel_and_indices_from_the_cpu(device):
    """Their inputs are copied to the CPU, and the results back."""
    table = on(device, values((7, 3)))

    def function(x, index):
        rows = ts.take(table, index, axis=0)
        return ts.linalg.inv(x @ x.T + 5 * ts.eye(4).to(device)) @ rows[:4]

    jitted = ts.jit(function)
    for seed in range(CALLS):
        x = on(device, values((4, 5), seed))
        for index in (ts.asarray([3, 1, 0, seed]), ts.asarray([2, 6, -1, 1]).to(device)):
            check_close([jitted(x, index)], [function(x, index)])


def test_numbers_on_the_cpu_are_those_of_the_call(device):
    def function(x, scale):
        return ts.tanh(x * scale) * scale + x

    jitted, x = ts.jit(function), on(device, values((6, 6)))
    for i in range(CALLS):
        scale = ts.asarray(np.float32(0.5 + i))
        check_close([jitted(x, scale)], [function(x, scale)])


def test_random_numbers_are_drawn_anew_and_alike(device):
    def drawn(wrap):
        ts.random.manual_seed(1)
        drop = nn.Dropout(0.5)
        run = wrap(lambda x: deep(drop(deep(x, x)) * 2 + x, x))
        return [run(on(device, values((6, 6)))) for _ in range(6)]

    found = drawn(ts.jit)
    check_close(found, drawn(lambda function: function))
    arrays = [np.asarray(each.cpu()) for each in found]
    assert all((a != b).any() for a, b in itertools.pairwise(arrays))


def test_arguments_are_written_in_place(device):
    def function(x, y):
        x += y
        x[0] = 0
        x *= deep(x, y)
        x[:, 1:3] = deep(y, x)[:, :2]
        return x

    jitted = ts.jit(function)
    for seed in range(6):
        x, y = on(device, values((4, 4), seed)), on(device, values((4, 4), 5))
        wanted = function(on(device, x), y)
        assert jitted(x, y) is x
        check_close([x], [wanted])


def test_parameters_are_read_and_buffers_written_where_they_are(device):
    module = nn.BatchNorm1d(4).to(device)
    twin = nn.BatchNorm1d(4).to(device)
    run = ts.jit(module)
    for seed in range(CALLS):
        x = on(device, values((8, 4), seed))
        check_close([run(x)], [twin(x)])
        with ts.no_grad():
            for each in (module, twin):
                each.weight *= 1.5
    check_close(module.state_dict().values(), twin.state_dict().values())


def test_results_that_are_kept_stay(device):
    @ts.jit
    def function(x):
        return ts.matmul(ts.tanh(x), x), x.sum() * 2

    inputs = [on(device, values((6, 6), seed)) for seed in range(2 * CALLS)]
    kept = [function(x) for x in inputs]
    for x, found in zip(inputs, kept, strict=True):
        check_close(found, [ts.matmul(ts.tanh(x), x), x.sum() * 2])


def test_signatures_and_devices_are_told_apart(device):
    @ts.jit
    def function(x):
        return ts.exp(x) @ x

    for _ in range(CALLS):
        for x in (
            values((3, 3)),
            on(device, values((3, 3))),
            on(device, values((4, 4))),
            on("cuda:1", values((3, 3))),
        ):
            check_close([function(x)], [ts.exp(x) @ x])
    assert function._n_programs == 4


def test_an_error_in_the_middle(device):
    def function(table, index):
        rows = ts.take(deep(table, table), index, axis=0)
        return deep(table, rows.T @ rows) + 1

    jitted, table = ts.jit(function), on(device, values((5, 5)))
    for i in range(2 * CALLS):
        index = ts.asarray([0, i, 1]).to(device)
        if i < 5:
            check_close([jitted(table, index)], [function(table, index)])
            continue
        with pytest.raises(IndexError, match=f"index {i} of an axis with 5"):
            jitted(table, index)
        index = ts.asarray([3, 1, 2]).to(device)
        check_close([jitted(table, index)], [function(table, index)])


def test_two_forward_passes_before_their_backward_passes(device):
    module = network().to(device)
    run = ts.jit(module)
    inputs = [on(device, values((8, 64), seed)) for seed in range(4)]
    for _ in range(2):
        found, wanted = (gradients_of_late_backward_passes(module, call, inputs) for call in (run, module))
        check_close(found, wanted, 1e-4)


def test_gradients_accumulate(device):
    module = network().to(device)

    def step(x):
        module(x).sum().backward()

    jitted, found = ts.jit(step), []
    for wrap in (jitted, step):
        found.append([])
        for cycle in range(3):
            module.zero_grad()
            for i in range(3):
                wrap(on(device, values((8, 64), 10 * cycle + i)))
            found[-1] += [each.grad for each in module.parameters()]
    check_close(found[0], found[1], 1e-4)


def test_on_another_stream(device):
    module = network().to(device)
    run, stream = ts.jit(module), ts.cuda.Stream(device)
    x = on(device, values((8, 64)))
    for i in range(2 * CALLS):
        if i % 2:
            with ts.cuda.stream(stream):
                found = run(x)
        else:
            found = run(x)
        check_close([found.detach()], [module(x).detach()])


def test_kernels_of_the_user_and_losses(device):
    @ts.kernel(tile=True)
    def scaled(x, w):
        return x * ts.rsqrt((x * x).mean() + 1e-5) * w

    w = on(device, values((5,)))
    w.requires_grad = True
    target = ts.asarray([1, 0, 4, 2, 2, 3]).to(device)

    def step(x):
        w.grad = None
        loss = functional.cross_entropy(scaled(x, w) * 2, target)
        loss.backward()
        return loss, w.grad

    jitted = ts.jit(step)
    for seed in range(CALLS):
        x = on(device, values((6, 5), seed))
        check_close([each.detach() for each in jitted(x)], [each.detach() for each in step(x)])


def test_tensors_of_two_devices_are_refused(device):
    x, y = on(device, values((3,))), on("cuda:1", values((3,)))
    with pytest.raises(NotImplementedError, match="computes on cuda:0 and cuda:1"):
        ts.jit(lambda x, y: (x * 2, y * 3))(x, y)


def test_memory_of_a_call_ends_with_its_results(device):
    run, x = ts.jit(deep), on(device, values((64, 64)))
    for _ in range(CALLS):
        out = run(x, x)
    before = ts.memory_stats(device).live_bytes
    out = run(x, x)
    assert ts.memory_stats(device).live_bytes == before
    del out
    assert ts.memory_stats(device).live_bytes < before


# --- CUDA graphs ---------------------------------------------------------------------------------------


def test_steps_are_launched_in_graphs(device):
    driver, jitted = emulator.driver(), ts.jit(deep)
    launches = []
    for seed in range(6):
        inputs = [on(device, values((6, 6), seed)), on(device, values((6, 6), 50 + seed))]
        wanted, before = deep(*inputs), driver.emulated_graph_launches()
        check_close([jitted(*inputs)], [wanted])
        launches.append(driver.emulated_graph_launches() - before)
    assert launches == [0, 0, 1, 1, 1, 1]
    report = jitted.report(*inputs)
    assert report.graph_steps == report.steps
    assert report.graph_bytes >= report.arena_bytes + 2 * inputs[0].nbytes
    assert f"{report.steps} steps in CUDA graphs" in str(report)


def test_a_training_step_is_a_graph_and_python_between(device):
    module = network().to(device)
    step = ts.jit(training_step(module, optim.AdamW(module.parameters(), lr=0.01)))
    x, y = (on(device, values((16, 64), seed)) for seed in (1, 2))
    for _ in range(CALLS):
        step(x, y)
    report = step.report(x, y)
    assert report.graph_steps == report.steps
    assert report.python_calls == ("Optimizer.step",)


def test_steps_that_copy_to_the_cpu_run_between_graphs(device):
    def function(x, y):
        return deep(ts.linalg.inv(deep(x, y).T @ deep(x, y) + ts.eye(6).to(device)), y)

    jitted = ts.jit(function)
    for seed in range(6):
        inputs = [on(device, values((6, 6), seed)), on(device, values((6, 6), 50 + seed))]
        check_close([jitted(*inputs)], [function(*inputs)])
    report = jitted.report(*inputs)
    assert 0 < report.graph_steps < report.steps


def test_numbers_that_change_are_not_in_graphs(device):
    def function(x, y, scale):
        return deep(deep(x, y) * scale + y, y)

    jitted = ts.jit(function)
    for seed in range(6):
        x, y, scale = (values((6, 6), seed), values((6, 6), 9), ts.asarray(np.float32(seed)))
        inputs = [on(device, x), on(device, y), scale]
        check_close([jitted(*inputs)], [function(*inputs)])
    report = jitted.report(*inputs)
    assert 0 < report.graph_steps < report.steps


def test_steps_of_which_no_graph_can_be_made_run_one_by_one(device):
    driver, jitted = emulator.driver(), ts.jit(deep)
    spoiled = ctypes.c_int.in_dll(driver, "emulated_spoiled_captures")
    for seed in range(CALLS):
        inputs = [on(device, values((6, 6), seed)), on(device, values((6, 6), 50 + seed))]
        spoiled.value = int(seed == 2)
        check_close([jitted(*inputs)], [deep(*inputs)])
    assert spoiled.value == 0
    assert jitted.report(*inputs).graph_steps == 0


def test_without_graphs(device):
    jitted = ts.jit(deep, graphs=False)
    for seed in range(CALLS):
        inputs = [on(device, values((6, 6), seed)), on(device, values((6, 6), 50 + seed))]
        check_close([jitted(*inputs)], [deep(*inputs)])
    assert jitted.report(*inputs).graph_steps == jitted.report(*inputs).graph_bytes == 0


def test_what_python_writes_between_parts_is_read_by_later_ones(device):
    def trained(wrap):
        w = on(device, values((6, 6), 1))
        w.requires_grad = True
        optimizer = optim.SGD([w], lr=0.1)

        def halve(*_):
            w.grad *= 0.5

        optimizer.register_step_pre_hook(halve)

        def step(argument, y):
            optimizer.zero_grad()
            deep(argument, y).sum().backward()
            optimizer.step()
            return deep(w.grad, y), deep(argument, y)

        run, y = wrap(step), on(device, values((6, 6), 2))
        found = [each.detach() for _ in range(6) for each in run(w, y)]
        return [*found, w.detach(), w.grad]

    check_close(trained(ts.jit), trained(lambda step: step), 1e-4)


def test_gradients_through_graphs_of_two_parts(device):
    jitted = ts.jit(deep)
    for seed in range(6):
        found = []
        for call in (jitted, deep):
            leaves = [on(device, values((6, 6), seed + i)) for i in range(2)]
            for leaf in leaves:
                leaf.requires_grad = True
            (call(*(leaf * 1.5 for leaf in leaves)) ** 2).sum().backward()
            found.append([leaf.grad for leaf in leaves])
        check_close(*found)
    report = jitted.report(*(leaf * 1.5 for leaf in leaves))
    assert report.graph_steps == report.steps


def test_too_little_memory_for_graphs(device):
    x, y = on(device, values((60, 60), 1)), on(device, values((60, 60), 2))
    jitted, wanted = ts.jit(deep), deep(x, y)
    for _ in range(2):
        check_close([jitted(x, y)], [wanted])
    held = ts.memory_stats(device).live_bytes
    report = jitted.report(x, y)
    assert report.graph_steps == report.steps
    ts.set_memory_limit(held + report.arena_bytes + report.kept_bytes + 4096, device)
    try:
        check_close([jitted(x, y)], [wanted])
    finally:
        ts.set_memory_limit(None, device)
    assert jitted.report(x, y).graph_steps == 0


def test_other_threads_compute_meanwhile(device):
    failures = []

    def work(seed):
        try:
            jitted = ts.jit(lambda x, y: deep(x, y) + seed)
            for i in range(6):
                x, y = on(device, values((6, 6), i)), on(device, values((6, 6), seed))
                check_close([jitted(x, y)], [deep(x, y) + seed])
        except BaseException as error:
            failures.append(error)

    run_in_threads(*(partial(work, seed) for seed in range(3)))
    assert not failures


def test_the_emulator_refuses_what_a_capture_does_not_allow(device):
    """So that a step which asks for it fails to become a graph."""
    driver, unsupported = emulator.driver(), 900
    deep(on(device, values((3, 3))), on(device, values((3, 3))))
    with emulator.context(device):
        check_refusals(driver, unsupported)


def check_refusals(driver, unsupported):
    stream, event, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    address, host = ctypes.c_ulonglong(), ctypes.create_string_buffer(8)
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    assert driver.cuEventCreate(ctypes.byref(event), 0) == 0
    assert driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(8), None) == 0
    refused = [
        lambda: driver.cuStreamSynchronize(stream),
        lambda: driver.cuCtxSynchronize(),
        lambda: driver.cuMemAllocAsync(ctypes.byref(ctypes.c_ulonglong()), ctypes.c_size_t(8), stream),
        lambda: driver.cuMemFreeAsync(address, stream),
        lambda: driver.cuMemcpyDtoHAsync_v2(host, address, ctypes.c_size_t(8), stream),
        lambda: driver.cuMemcpyHtoDAsync_v2(address, host, ctypes.c_size_t(8), stream),
        lambda: driver.cuEventRecord(event, stream),
        lambda: driver.cuStreamWaitEvent(stream, event, 0),
        lambda: driver.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), b""),
    ]
    assert driver.cuStreamBeginCapture_v2(stream, 1) == 0
    assert driver.cuMemsetD8Async(address, 1, ctypes.c_size_t(8), stream) == 0
    assert [call() for call in refused] == [unsupported] * len(refused)
    assert driver.cuStreamEndCapture(stream, ctypes.byref(graph)) == 901
    assert driver.cuStreamBeginCapture_v2(stream, 1) == 0
    assert driver.cuMemsetD8Async(address, 7, ctypes.c_size_t(8), stream) == 0
    assert driver.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
    ready = ctypes.c_void_p()
    assert driver.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_ulonglong(0)) == 0
    assert driver.cuMemsetD8Async(address, 1, ctypes.c_size_t(8), stream) == 0
    assert driver.cuGraphLaunch(ready, stream) == 0
    assert driver.cuMemcpyDtoHAsync_v2(host, address, ctypes.c_size_t(8), stream) == 0
    assert host.raw == b"\7" * 8
    assert driver.cuMemFreeAsync(address, stream) == 0


OLD_DRIVER = """
import pathlib, sys
from tests.tensora import emulator
emulator.load(pathlib.Path(sys.argv[1]), graphs=False)
from tests.tensora.test_jit_cuda import check_close, deep, on, ts, values
jitted = ts.jit(deep)
for seed in range(4):
    x, y = on("cuda:0", values((6, 6), seed)), on("cuda:0", values((6, 6), 9))
    check_close([jitted(x, y)], [deep(x, y)])
print(jitted.report(x, y).graph_steps)
"""


def test_a_driver_without_graphs(device):
    emulator.driver()
    command = [sys.executable, "-c", OLD_DRIVER, os.environ["EMULATED_CUDA_FOLDER"]]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout.strip() == "0", found.stderr


def test_arguments_with_strides_that_share_memory(device):
    def function(a, b):
        a *= 2
        b += deep(a, b)
        return deep(b, a) + 1

    jitted, memory = ts.jit(function), []
    for call in (function, jitted):
        found = []
        for i in range(2 * CALLS):
            x = on(device, values((6, 6), i))
            pair = ((x[::2, ::2], x[1::2, 1::2]), (x[1:4, :3], x[2:5, 1:4]), (x.T[:3, :3], x[3:, 3:]))[i % 3]
            found += [call(*pair), x]
        memory.append(found)
    check_close(memory[1], memory[0])


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_gradients_of_some_of_the_results(device, used):
    def function(x, y):
        z = deep(x, y)
        return z * y, deep(z, x)

    jitted, gradients = ts.jit(function), []
    for call in (function, jitted):
        for i in range(2 * CALLS):
            leaves = [on(device, values((4, 4), seed)) for seed in (i, i + 10)]
            for leaf in leaves:
                leaf.requires_grad = True
            results = call(*leaves)
            sum(((results[k] * results[k]).sum() for k in used), ts.zeros(()).to(device)).backward()
            gradients += [leaf.grad for leaf in leaves]
    check_close(gradients[len(gradients) // 2 :], gradients[: len(gradients) // 2])
