"""What ``predict_compile`` says of traces: fusions, memory, plans, limits, and where numbers come from."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from accelera import generate_synthetic_trace, predict_compile
from accelera.errors import UnknownNameError
from accelera.memory import Compute, Hierarchy, Tier
from accelera.simulator.compiling import Figure, predict_trace
from accelera.simulator.compiling.dataflow import OpKind, dataflow_of, kind_of
from accelera.simulator.compiling.fusion import FusedKernel, fuse
from accelera.simulator.compiling.memory_plan import GapPlanner, apply_plan
from accelera.simulator.max_batch import largest_that
from accelera.simulator.replay import step_seconds
from accelera.trace import Kind, Occupancy, Trace
from accelera.units import parse_limit
from tests.architecture.repository import run_python
from tests.simulator.programs import computed, program, programs

MACHINE = Hierarchy((Tier("device", 10**6, float("inf")), Tier("host", 10**9, 1e6)), Compute(1e9, 1e8, 1e-6))


def kernels_of(trace: Trace) -> list[tuple[str, ...]]:
    return [each.ops for each in fuse(dataflow_of(trace))]


class TestFusion:
    def test_a_chain_of_pointwise_operations_is_one_kernel_beside_the_product(self) -> None:
        trace = program(
            ("mm", ["x", "w"], ["a"]),
            ("add", ["a", "bias"], ["b"]),
            ("relu", ["b"], ["c"]),
            ("mul", ["c"], ["d"]),
        )
        assert kernels_of(trace) == [("mm",), ("add", "relu", "mul")]

    def test_what_stays_inside_a_kernel_is_neither_written_nor_read(self) -> None:
        trace = program(("add", ["x"], ["a"]), ("relu", ["a"], ["b"]), freed={1: ["a"]})
        (kernel,) = fuse(dataflow_of(trace))
        assert (kernel.read_bytes, kernel.written_bytes, kernel.eager_bytes) == (256, 256, 1024)
        assert (kernel.saved_bytes, kernel.saved_launches) == (512, 1)

    def test_a_result_that_stays_is_written_even_if_it_is_used_inside(self) -> None:
        trace = program(("add", ["x"], ["a"]), ("relu", ["a"], ["b"]))
        (kernel,) = fuse(dataflow_of(trace))
        assert kernel.written_bytes == 512

    def test_loops_over_other_sizes_stay_apart(self) -> None:
        trace = program(
            ("add", ["x"], ["a"]), ("relu", ["a"], ["b"]), ("relu", ["a"], ["c"]), elements={"b": 16}
        )
        assert sorted(kernels_of(trace)) == [("add", "relu"), ("relu",)]

    def test_a_small_loop_that_only_a_larger_one_needs_goes_into_it(self) -> None:
        trace = program(
            ("neg", ["m"], ["a"]), ("add", ["a", "x"], ["b"]), elements={"m": 8, "a": 8}, freed={1: ["a"]}
        )
        assert kernels_of(trace) == [("neg", "add")]

    def test_readers_of_the_same_contents_merge(self) -> None:
        assert kernels_of(program(("relu", ["x"], ["a"]), ("exp", ["x"], ["b"]))) == [("relu", "exp")]

    def test_no_kernel_waits_for_itself_through_a_product(self) -> None:
        trace = program(("relu", ["x"], ["a"]), ("mm", ["a", "w"], ["b"]), ("add", ["a", "b"], ["c"]))
        assert kernels_of(trace) == [("relu",), ("mm",), ("add",)]

    def test_reductions_join_their_producers_but_a_sum_over_rows_on_the_way_back_does_not(self) -> None:
        forward = program(("add", ["x"], ["a"]), ("_softmax", ["a"], ["b"]))
        assert kernels_of(forward) == [("add", "_softmax")]
        backward = program(
            ("gelu_backward", ["g"], ["a"]), ("sum", ["a"], ["b"]), elements={"b": 8}, roles={"b": "gradient"}
        )
        assert kernels_of(backward) == [("gelu_backward",), ("sum",)]

    def test_forward_backward_and_optimizer_are_compiled_apart(self) -> None:
        trace = program(
            ("relu", ["x"], ["a"]),
            ("threshold_backward", ["a"], ["g"]),
            ("mul", ["g", "m"], ["m2"]),
            ("add", ["m2"], ["n"]),
            roles={"g": "gradient", "m": "optimizer_state"},
        )
        phases = [each.phase for each in fuse(dataflow_of(trace))]
        assert phases[:2] == ["forward", "backward"]
        assert kernels_of(trace)[0] == ("relu",)

    def test_the_optimizer_is_merged_on_request_only(self) -> None:
        steps = [("mul", ["m"], ["a"]), ("add", ["a", "m"], ["b"])]
        flow = dataflow_of(program(*steps, roles={"m": "optimizer_state"}))
        assert [len(each.steps) for each in fuse(flow)] == [1, 1]
        assert [len(each.steps) for each in fuse(flow, optimizer=True)] == [2]

    def test_views_cost_nothing(self) -> None:
        assert kernels_of(program(("view", ["x"], ["x"]), ("relu", ["x"], ["a"]))) == [("relu",)]

    @pytest.mark.parametrize(
        ("op", "kind"),
        [
            ("aten.add_.Tensor", OpKind.POINTWISE),
            ("aten::mm", OpKind.LIBRARY),
            ("_scaled_dot_product_flash_attention_for_cpu_backward", OpKind.LIBRARY),
            ("silu_backward", OpKind.POINTWISE),
            ("my_own_kernel", OpKind.OPAQUE),
            ("aten.t.default", OpKind.VIEW),
            ("_foreach_mul_", OpKind.POINTWISE),
        ],
    )
    def test_kinds_by_name(self, op: str, kind: OpKind) -> None:
        assert kind_of(op) is kind

    @given(programs())
    @settings(max_examples=200, deadline=None)
    def test_kernels_do_each_step_once_in_an_order_that_exists(self, trace: Trace) -> None:
        flow = dataflow_of(trace)
        kernels = fuse(flow)
        steps = Counter(step for kernel in kernels for step in kernel.steps)
        assert set(steps.values()) <= {1}
        assert set(steps) == set(range(trace.step_count))
        waits = {
            (place[producer], number)
            for place in [{step: number for number, kernel in enumerate(kernels) for step in kernel.steps}]
            for number, kernel in enumerate(kernels)
            for step in kernel.steps
            for producer in flow.producers(flow.operations[step])
            if place[producer] != number
        }
        assert can_be_ordered(kernels, waits)
        assert sum(each.flops for each in kernels) == pytest.approx(trace.flops.sum())


def can_be_ordered(kernels: tuple[FusedKernel, ...], waits: set[tuple[int, int]]) -> bool:
    left = set(range(len(kernels)))
    while left:
        free = {each for each in left if not any(late == each and early in left for early, late in waits)}
        if not free:
            return False
        left -= free
    return True


class TestResidency:
    @given(programs())
    @settings(max_examples=100, deadline=None)
    def test_the_curve_is_that_of_a_set_of_buffers(self, trace: Trace) -> None:
        found = Occupancy(trace, evictions=True)
        held = {b for b in range(trace.buffer_count) if trace.kind[trace.buffer == b][0] == Kind.READ}
        for event, (buffer, kind) in enumerate(zip(trace.buffer.tolist(), trace.kind.tolist(), strict=True)):
            held = held - {buffer} if kind == Kind.FREE else held | {buffer}
            assert found.live_bytes[event] == trace.size_bytes[sorted(held)].sum()
            assert set(np.flatnonzero(found.alive_after(event)).tolist()) == held
        if len(trace):
            assert sum(found.peak_by_role().values()) == found.peak_bytes

    def test_evicted_contents_are_held_again_when_accessed(self) -> None:
        kinds = [Kind.WRITE, Kind.EVICT, Kind.READ, Kind.SAVE, Kind.FREE]
        found = Occupancy(Trace.from_arrays([0] * 5, 8, kinds=kinds), evictions=True)
        assert found.live_bytes.tolist() == [8, 0, 8, 8, 0]
        assert found.alive_after(3).tolist() == [True]


class TestPlans:
    @given(programs())
    @settings(max_examples=150, deadline=None)
    def test_a_plan_computes_the_same_within_the_peak_it_says(self, trace: Trace) -> None:
        flow, held = dataflow_of(trace), Occupancy(trace, evictions=True)
        planner = GapPlanner(trace, flow, held, step_seconds(trace, MACHINE.compute), MACHINE)
        done, stays = computed(trace)
        for share in (0.9, 0.6, 0.3):
            reached = planner.lower_to(int(share * held.peak_bytes))
            replay = apply_plan(trace, flow, planner.choices)
            assert replay.peak_bytes <= planner.peak_bytes
            assert reached == (planner.peak_bytes <= int(share * held.peak_bytes))
            again, still = computed(replay.trace)
            assert again == done
            assert stays.items() <= still.items()

    def test_what_is_quick_to_make_is_made_again(self) -> None:
        trace = between(flops=1.0)
        plan = predict_trace(trace, hierarchy=MACHINE, budgets=["80%"]).plans[0]
        assert (plan.feasible, plan.recomputed.value, plan.offloaded.value) == (True, 256, 0)

    def test_what_is_slow_to_make_is_moved(self) -> None:
        trace = between(flops=1e9)
        plan = predict_trace(trace, hierarchy=MACHINE, budgets=["80%"]).plans[0]
        assert (plan.feasible, plan.recomputed.value, plan.offloaded.value) == (True, 0, 256)
        assert [each.how for each in plan.tensors] == ["offload"]

    def test_chance_is_never_run_twice(self) -> None:
        plan = predict_trace(between(1.0, op="bernoulli"), hierarchy=MACHINE, budgets=["80%"]).plans[0]
        assert plan.recomputed.value == 0

    def test_a_budget_below_one_step_is_infeasible_and_says_so(self) -> None:
        found = predict_trace(between(1.0), hierarchy=MACHINE, budgets=[100])
        assert found.fits[0].verdict == "infeasible"
        assert not found.plans[0].feasible
        assert found.plans[0].total.value is None
        assert "infeasible" in found.explain()


def between(flops: float, op: str = "relu") -> Trace:
    """A value with a large one between its uses."""
    return program(
        (op, ["x"], ["a"]),
        ("mm", ["x"], ["big"]),
        ("mm", ["big"], ["c"]),
        ("mm", ["a", "c", "x"], ["d"]),
        elements={"big": 128},
        freed={2: ["big"], 3: ["a", "c"]},
        flops=[flops, 0.0, 0.0, 0.0],
    )


class TestVerdicts:
    def test_three_verdicts(self) -> None:
        found = predict_trace(between(1.0), hierarchy=MACHINE, budgets=["100%", "80%", "10%"])
        assert [each.verdict for each in found.fits] == ["fits", "fits with offload", "infeasible"]
        assert found.fits[0].added.value == 0
        assert (found.fits[1].traffic.value or 0) > 0
        assert (found.fits[1].added.value or 0) > 0

    def test_the_machine_s_capacity_by_default(self) -> None:
        found = predict_trace(between(1.0), hierarchy=MACHINE)
        assert found.fits[0].budget.value == 10**6
        assert len(found.plans) == 8

    @pytest.mark.parametrize(
        ("compute", "bound"),
        [
            (Compute(1.0, 1e12, 0.0), "compute"),
            (Compute(1e12, 1.0, 0.0), "memory bandwidth"),
            (Compute(1e12, 1e12, 1.0), "launches"),
        ],
    )
    def test_what_bounds_the_time(self, compute: Compute, bound: str) -> None:
        machine = Hierarchy(MACHINE.tiers, compute)
        time = predict_trace(between(10.0), hierarchy=machine).time
        assert time.eager.bound == time.compiled.bound == bound
        assert time.eager.total.value == pytest.approx(
            float(compute.seconds(between(10.0).flops, touched(between(10.0))).sum())
        )

    def test_recorded_seconds_are_measured(self) -> None:
        trace = Trace.from_arrays([0, 1], 64, ops=["relu", "relu"], seconds=[0.5, 0.25])
        total = predict_trace(trace, hierarchy=MACHINE).time.eager.total
        assert (total.value, total.source) == (0.75, "measured")

    def test_times_that_nobody_measured_come_with_a_range(self) -> None:
        found = predict_trace(between(10.0), hierarchy=MACHINE)
        for time in (found.time.eager, found.time.compiled):
            low, total, high = (each.value or 0.0 for each in (time.low, time.total, time.high))
            assert 0 < low < total < high
            assert {time.low.source, time.high.source} == {"analytic"}
            assert f"{time.low.text} to {time.high.text} is to be expected" in found.explain()
            assert time.low.text in found.table()
            assert time.high.text in found.table()
        assert not found.time.measured

    @pytest.mark.parametrize("of_the_whole", [False, True])
    def test_a_measured_step_narrows_the_range(self, of_the_whole: bool) -> None:
        trace = between(10.0)
        measured = trace.with_meta(measured_s=2.0 * trace.step_count)
        if not of_the_whole:
            measured = replace(trace, seconds=np.full(trace.step_count, 2.0))
        time, plain = (predict_trace(each, hierarchy=MACHINE).time for each in (measured, trace))
        assert time.measured
        assert time.eager.low == time.eager.high == time.eager.total
        assert time.eager.total.value == 2.0 * trace.step_count
        assert time.compiled.high.value / time.compiled.low.value < (
            plain.compiled.high.value / plain.compiled.low.value
        )

    @pytest.mark.parametrize("told", [float("nan"), float("inf"), "soon", None])
    def test_a_measured_time_that_is_none_counts_not(self, told: Any) -> None:
        assert not predict_trace(between(1.0).with_meta(measured_s=told), hierarchy=MACHINE).time.measured

    def test_recorded_seconds_change_no_share(self) -> None:
        trace = between(10.0)
        recorded = replace(trace, seconds=np.full(trace.step_count, 2.0))
        estimated, scaled = (predict_trace(each, hierarchy=MACHINE).time for each in (trace, recorded))
        assert scaled.speedup == estimated.speedup
        for before, after in ((estimated.eager, scaled.eager), (estimated.compiled, scaled.compiled)):
            assert after.bound == before.bound
            parts = [each.value or 0.0 for each in (after.compute, after.bandwidth, after.launches)]
            assert sum(parts) == pytest.approx(after.total.value)
        assert scaled.eager.total.value == 2.0 * trace.step_count
        assert scaled.compiled.total.value == pytest.approx(scaled.eager.total.value / scaled.speedup.value)

    @pytest.mark.parametrize(
        ("budget", "size"), [("50%", 500), (0.25, 250), (1.0, 1000), ("1kB", 1000), (77, 77), (2.0, 2)]
    )
    def test_budgets(self, budget: Any, size: int) -> None:
        assert parse_limit("budget", budget, lambda: 1000) == size

    @pytest.mark.parametrize("budget", ["much", "x%", -1, float("nan")])
    def test_what_is_no_budget(self, budget: Any) -> None:
        with pytest.raises(ValueError, match="is no"):
            parse_limit("budget", budget, lambda: 1000)

    def test_a_machine_without_arithmetic_is_refused(self) -> None:
        with pytest.raises(ValueError, match="compute speed"):
            predict_trace(between(1.0), hierarchy=Hierarchy(MACHINE.tiers))
        with pytest.raises(UnknownNameError):
            predict_trace(between(1.0), hierarchy="abacus")

    def test_an_empty_trace_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no accesses"):
            predict_trace(Trace.from_arrays([], []), hierarchy=MACHINE)


def touched(trace: Trace) -> np.ndarray[Any, np.dtype[np.float64]]:
    sizes = trace.size_bytes[trace.accessed].astype(np.float64)
    totals: np.ndarray = np.bincount(trace.step[trace.is_access], weights=sizes, minlength=trace.step_count)
    return totals


class TestLimits:
    def make(self, batch: int, context: int) -> Trace:
        activations = dict.fromkeys("abc", batch * context)
        scores = {"s": 4 * batch * context**2}
        return program(
            ("mm", ["x", "w"], ["a"]),
            ("_softmax", ["a"], ["s"]),
            ("mm", ["s"], ["c"]),
            elements={"x": batch * context, **activations, **scores, "w": 1000},
            roles={"w": "weight", "x": "input"},
        )

    def test_tracing_again_and_scaling_agree_on_a_program_that_scales(self) -> None:
        trace = self.make(2, 8)
        options: dict[str, Any] = {"hierarchy": MACHINE, "budgets": [100_000], "batch": 2, "context": 8}
        scaled = predict_trace(trace, **options).limits[0]
        traced = predict_trace(trace, **options, make_trace=self.make).limits[0]
        assert (scaled.how, traced.how) == ("scaled", "traced")
        assert (scaled.batch, scaled.context) == (traced.batch, traced.context)
        peaks = [
            Occupancy(self.make(int(traced.batch.value or 0) + more, 8), evictions=True).peak_bytes
            for more in (0, 1)
        ]
        assert peaks[0] <= 100_000 < peaks[1]

    def test_gradients_of_weights_do_not_grow_with_the_batch(self) -> None:
        """The embedding's gradient is a sum of two, and neither is called after it."""

        def make(batch: int, context: int) -> Trace:
            return generate_synthetic_trace(
                "Transformer", 1, batch, context, 0.0, mode="training", steps=1, hidden_size=64
            )

        trace = make(2, 16)
        budgets = [3 * Occupancy(trace, evictions=True).peak_bytes]
        options: dict[str, Any] = {"hierarchy": MACHINE, "budgets": budgets, "batch": 2}
        scaled = predict_trace(trace, **options).limits[0].batch.value
        traced = predict_trace(trace, **options, context=16, make_trace=make).limits[0].batch.value
        assert scaled == pytest.approx(traced, rel=0.02)

    def test_none_fits(self) -> None:
        found = predict_trace(self.make(2, 8), hierarchy=MACHINE, budgets=[4000], batch=2)
        assert (found.limits[0].batch.value, found.limits[0].context.value) == (0, None)

    def test_nothing_is_said_without_sizes(self) -> None:
        assert predict_trace(self.make(2, 8), hierarchy=MACHINE).limits == ()

    @pytest.mark.parametrize("guess", [1, 5, 100, 1000])
    @pytest.mark.parametrize("most", [0, 1, 4, 99, 100, 101])
    def test_bisection(self, guess: int, most: int) -> None:
        assert largest_that(lambda size: size <= most, 10_000, guess) == most

    def test_without_end(self) -> None:
        assert largest_that(lambda size: True, 1000) == 1000


class TestFigures:
    def test_every_number_of_a_prediction_says_where_it_comes_from(self) -> None:
        found = predict_trace(between(1.0), hierarchy=MACHINE, batch=1, context=2)
        untagged = {key for key, value in leaves(found.to_dict()) if isinstance(value, (int, float))}
        assert untagged <= {"steps", "peak_step", "feasible"}
        json.dumps(found.to_dict())

    def test_a_real_run_is_measured_and_shapes_are_analytic(self) -> None:
        for fake, source in ((False, "measured"), (True, "analytic")):
            found = predict_trace(between(1.0).with_meta(fake=fake), hierarchy=MACHINE)
            assert found.memory.peak.source == source

    def test_a_source_is_one_of_three(self) -> None:
        with pytest.raises(ValueError, match="none of measured, analytic, learned"):
            Figure(1, "B", "guessed")  # type: ignore[arg-type]

    def test_tables_and_sentences_name_what_matters(self) -> None:
        found = predict_trace(between(1.0), hierarchy=MACHINE, budgets=["100%", "80%"], batch=1)
        for word in (
            "launches",
            "traffic",
            "peak memory",
            "hard floor",
            "verdict",
            "recompute",
            "largest batch",
        ):
            assert word in found.table()
        for word in ("The peak is", "Compiled,", "bound by", "Plan for", "(analytic)"):
            assert word in found.explain()

    def test_each_budget_has_one_verdict_and_one_added_time(self) -> None:
        """That of moving or that of the plan, whichever is quicker."""
        for flops in (1.0, 1e9):
            found = predict_trace(between(flops), hierarchy=MACHINE, budgets=["100%", "80%", "1"])
            rows = found.table().split("\n\n")[-1].splitlines()
            assert rows[0].split().count("added") == 1
            assert len(rows) == 1 + 3
            for fit, plan, row in zip(found.fits, found.plans, rows[1:], strict=True):
                assert row.startswith(f"{fit.budget.text} ")
                known = [each.added.value for each in (fit, plan) if each.added.value is not None]
                assert (Figure(min(known), "s").text if known else "infeasible") in row
                said = [
                    line
                    for line in found.explain().splitlines()
                    if fit.budget.text in line and ("adds" in line or "added" in line)
                ]
                assert len(said) == (fit.verdict == "fits with offload")

    def test_kernels_alike_are_one_row(self) -> None:
        trace = program(*((op, [f"x{i}"], [f"{op}{i}"]) for i in range(3) for op in ("relu", "exp")))
        found = predict_trace(trace, hierarchy=MACHINE)
        (fusion,) = found.fusion.fusions
        assert (fusion.ops, fusion.count.value) == (("relu", "exp"), 3)
        assert fusion.saved_launches.value == 3
        assert "relu + exp (x3)" in found.table()


def leaves(value: Any, key: str = "") -> list[tuple[str, Any]]:
    """Yield keys and values outside figures."""
    if isinstance(value, dict):
        if set(value) == {"value", "unit", "source"}:
            return []
        return [leaf for name, each in value.items() for leaf in leaves(each, name)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in leaves(each, key)]
    return [(key, value)]


class TestFront:
    def test_a_module_is_captured_first(self) -> None:
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
        found = predict_compile(model, torch.randn(4, 8), hierarchy=MACHINE)
        assert found.memory.peak.source == "measured"
        assert (found.fusion.traffic.value or 0) < (found.fusion.eager_traffic.value or 0)

    def test_the_largest_batch_is_found_by_capturing_shapes(self) -> None:
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
        found = predict_compile(
            lambda: model,
            make_inputs=lambda batch, context: torch.randn(batch, 8),
            hierarchy=MACHINE,
            budgets=[200_000],
            train=True,
        )
        largest = int(found.limits[0].batch.value or 0)
        peaks = [
            Occupancy(captured(model, torch.randn(largest + more, 8)), evictions=True).peak_bytes
            for more in (0, 1)
        ]
        assert peaks[0] <= 200_000 < peaks[1]

    def test_what_is_no_program(self) -> None:
        with pytest.raises(TypeError, match="is a int"):
            predict_compile(3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="needs inputs="):
            predict_compile(lambda: None)  # type: ignore[arg-type, return-value]

    def test_traces_and_texts_load_no_torch(self, tmp_path: Path) -> None:
        code = (
            "import sys, accelera; from accelera.trace import Trace; "
            "accelera.predict_compile('x = 1'); "
            "accelera.predict_compile(Trace.from_arrays([0, 1], 8, ops=['relu', 'mm'])); "
            "assert 'torch' not in sys.modules"
        )
        ran = run_python("-c", code, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr


def captured(model: Any, inputs: Any) -> Trace:
    from accelera import capture

    return capture(lambda: model, lambda: inputs, fake=True)
