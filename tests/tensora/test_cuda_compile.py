"""The sources for CUDA devices compile for every architecture, by nvcc and by NVRTC, without a device."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accelera.tensora.core import native


@pytest.fixture(autouse=True)
def fusion() -> None:
    """Once: nothing here computes."""


ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
TYPES = {
    "booleans": ["bool"],
    "unsigneds": ["uint8_t"],
    "signeds": ["int64_t"],
    "halves": ["Half", "BFloat"],
    "reals": ["float", "double"],
    "complexes": ["C64"],
}
CLASSES = {
    "integers": ["unsigneds", "signeds"],
    "floats": ["halves", "reals"],
    "inexact": ["halves", "reals", "complexes"],
    "numbers": ["unsigneds", "signeds", "halves", "reals", "complexes"],
    "any_type": list(TYPES),
    "ordered": ["unsigneds", "signeds", "halves", "reals", "booleans"],
}
ROWS = """
extern "C" __global__ void softmax_{type}(int64_t n, const {type}* x, {type}* y) {{
    softmax_rows<{type}, false>(n, n, x, y);
    softmax_rows<{type}, true>(n, n, x, y);
    softmax_backward_rows<{type}, false>(n, n, x, x, y);
    softmax_backward_rows<{type}, true>(n, n, x, x, y);
}}
extern "C" __global__ void losses_{type}(const CrossEntropy<{type}> job) {{
    cross_entropy_rows(job);
    cross_entropy_backward_rows(job);
}}
extern "C" __global__ void norms_{type}(const Norm<{type}> job, {type}* g, Computed<{type}>* w) {{
    norm_rows(job);
    norm_backward_rows(job, g);
    norm_weight_gradients(job, g, 3, w, w);
}}
extern "C" __global__ void convolutions_{type}(const Convolution<{type}> job) {{
    convolution(job);
    convolution_input(job);
    convolution_weight(job);
}}
extern "C" __global__ void windows_{type}(const Convolution<{type}> job) {{
    unfold_windows(job);
    fold_windows(job);
}}
extern "C" __global__ void scans_{type}(int64_t n, const {type}* x, {type}* y) {{
    using A = Computed<{type}>;
    scan_lines<SumOfPowers<A>, A>(
        n, n, n, [&](int64_t i, int64_t) {{ return A(x[i]); }}, [&](int64_t i, A v) {{ y[i] = {type}(v); }});
}}
extern "C" __global__ void pools_{type}(const Pool<{type}> job) {{
    max_pool(job);
    avg_pool(job);
    avg_pool_back(job);
}}
extern "C" __global__ void channels_{type}(const ChannelNorm<{type}> job) {{
    channel_norm_rows(job);
    channel_norm_backward_rows(job);
}}
extern "C" __global__ void steps_{type}(const Sgd<{type}> sgd, const Adam<{type}> adam) {{
    sgd_step(sgd);
    adam_step(adam);
}}
"""
REDUCTIONS = """
extern "C" __global__ void reduce_{type}(const Reduction<2, 3> job, const {type}* x, int64_t* at) {{
    using A = Computed<{type}>;
    reduce_by_blocks<Sum<A>, {type}, A, {type}>(job);
    reduce_by_threads<Product<A>, {type}, A, {type}>(job);
    reduce_by_blocks<Any<bool>, {type}, bool, bool>(job);
    scan_lines<Sum<A>, A>(
        2, 3, 4, [&](int64_t i, int64_t) {{ return A(x[i]); }},
        [&](int64_t i, A v) {{ static_cast<A*>(job.out)[i] = v; }});
}}
"""
EXTREMES = """
extern "C" __global__ void extremes_{type}(const Reduction<1, 1> job, const {type}* x, int64_t* at) {{
    using A = Computed<{type}>;
    reduce_by_blocks<Largest<A>, {type}, A, {type}>(job);
    reduce_by_threads<Smallest<A>, {type}, A, {type}>(job);
    find_extremes<{type}, true>(2, 3, 1, x, at);
    using P = Found<A>;
    scan_lines<Running<A, true>, P>(
        2, 3, 4, [&](int64_t i, int64_t k) {{ return P{{A(x[i]), k}}; }},
        [&](int64_t i, P v) {{ at[i] = v.at; }});
}}
"""
INDEXING = """
extern "C" __global__ void index_{type}(int64_t n, const {type}* x, const int64_t* at, {type}* y,
                                        Extents<2> shape, Steps<2> steps) {{
    take_slices(n, n, n, n, x, at, y);
    put_slices(n, n, n, n, x, at, y);
    take_along(n, shape, steps, n, x, at, y);
}}
extern "C" __global__ void add_slices_{type}(int64_t n, const {type}* x, const int64_t* at, {type}* y) {{
    add_slices(n, n, n, n, n, x, at, at, at, y);
    recur_lines(n, n, n, x, x, y);
    join_along<Sum>(Extents<1>{{n}}, Steps<1>{{n}}, Steps<1>{{n}}, n, n, n, x, at, y);
}}
extern "C" __global__ void sort_{type}(int64_t n, const {type}* x, const int64_t* order, int64_t* y) {{
    merge_runs<{type}, true>(n, n, n, x, order, y);
    merge_runs<{type}, false>(n, n, n, x, order, y);
    search_sorted(n, n, n, true, x, x, y);
}}
"""


def formulas(chosen: set[str]) -> list[str]:
    """A kernel for each formula and type."""
    kernels = []
    text = native.cuda_sources()["tensora/kernels/formulas.def"]
    for name, inputs, classes in re.findall(r"^FORMULA\((\w+), (\d), ([\w| ]+),", text, re.MULTILINE):
        kinds = [kind for part in classes.split(" | ") for kind in CLASSES.get(part, [part])]
        for type_name in (each for kind in kinds for each in TYPES[kind] if each in chosen):
            values = ", ".join(f"x[{k} * n + i]" for k in range(int(inputs)))
            called = f"value<{name}_formula, {type_name}>"
            zeros = ", ".join([f"{type_name}()"] * int(inputs))
            kernels.append(
                f'extern "C" __global__ void {name}_{type_name}(int64_t n, const {type_name}* x, '
                f"decltype({called}({zeros}))* y) {{ for (int64_t i = first_element(); i < n; "
                f"i += all_threads()) y[i] = {called}({values}); }}"
            )
    return kernels


def everything(chosen: set[str]) -> str:
    kernels = formulas(chosen)
    for type_name in sorted(chosen):
        kernels.append(INDEXING.format(type=type_name) if type_name != "bool" else "")
        kernels.append(REDUCTIONS.format(type=type_name))
        if type_name != "C64":
            kernels.append(EXTREMES.format(type=type_name))
        if type_name in ("Half", "BFloat", "float", "double"):
            kernels.append(ROWS.format(type=type_name))
    headers = '#include "tensora/cuda/rows.cuh"\n'
    body = "\n".join(kernels)
    return f"#define TENSORA_DEVICE\n{headers}namespace accelera::tensora::device {{\n{body}\n}}\n"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvcc_compiles_every_kernel(architecture: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    write_sources(tmp_path)
    types = {each for kind in TYPES.values() for each in kind}
    source = tmp_path / "kernels.cu"
    source.write_text(everything(types if architecture == "sm_90" else {"float", "int64_t"}))
    command: list[Any] = [nvcc, "-std=c++20", f"-arch={architecture}", "-cubin", "-I", tmp_path, source]
    made = subprocess.run([*command, "-o", tmp_path / "kernels.cubin"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "kernels.cubin").stat().st_size > 100_000


KERNELS = """
import accelera.tensora as ts
from tests.tensora import test_kernels as kernels

for dtype in ("float16", "bfloat16", "float32", "float64"):
    for kernel, n in (
        (kernels.softmax_row, 1), (kernels.norm_row, 3), (kernels.log_sum_exp, 1), (kernels.swish, 2)
    ):
        for text in (kernel.cuda_source(*[dtype] * n), kernel.gradient_source(*[dtype] * n)):
            print(text, end="\\0")
"""


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_nvcc_compiles_kernels_of_the_user(architecture: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    write_sources(tmp_path)
    # In a process of its own: entries of the op table stay.
    found = subprocess.run([sys.executable, "-c", KERNELS], capture_output=True, text=True, check=True)
    texts = found.stdout.split("\0")[:-1]
    assert len(texts) == 32
    source = tmp_path / "kernels.cu"
    source.write_text(
        '#define TENSORA_DEVICE\n#include "tensora/cuda/rows.cuh"\n' + "".join(map(in_space, texts))
    )
    command: list[Any] = [nvcc, "-std=c++20", f"-arch={architecture}", "-cubin", "-I", tmp_path, source]
    made = subprocess.run([*command, "-o", tmp_path / "kernels.cubin"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


def in_space(text: str) -> str:
    """The kernel in a namespace of its own."""
    declarations, _, body = text.partition(";};\n") if ";};\n" in text else text.partition("};\n")
    name = f"k{abs(hash(text))}"
    return (
        f"namespace accelera::tensora::device::{name} {{\n{declarations};}};\n"
        f"__global__ void __launch_bounds__(256) kernel(const Arguments a) {{\n{body}\n}}\n}}\n"
    )


def write_sources(folder: Path) -> None:
    for name, text in native.cuda_sources().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_nvrtc_compiles_for_every_architecture() -> None:
    # In a process of its own: this one may have the emulator's compiler.
    code = f"""
from accelera.tensora.core import native
from accelera.tensora import cuda
from tests.tensora.test_cuda_compile import everything
try:
    native.cuda_compile('extern "C" __global__ void none() {{}}', "sm_90")
except RuntimeError as error:
    print("missing" if "not found" in str(error) else error)
else:
    print([native.cuda_compile(everything({{"float"}}), each)[1:4] for each in {ARCHITECTURES}])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if found.stdout.strip() == "missing":
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    assert found.stdout.strip() == str([b"ELF"] * len(ARCHITECTURES)), found.stdout + found.stderr


def test_products_and_sums_are_not_contracted() -> None:
    """A fused kernel gives the bits of its operations one by one."""
    code = """
from accelera.tensora.core import native
from accelera.tensora import cuda
try:
    native.cuda_compile('extern "C" __global__ void none() {}', "sm_90")
except RuntimeError as error:
    print("missing" if "not ended" in str(error) else error)
else:
    text = 'extern "C" __global__ void f(float* x, double* y) { *x = *x * 3 + *x; *y = *y * *y - *y; }'
    print(native.cuda_compile(text, "compute_90").decode())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if ended.stdout.strip() == "missing":
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    assert ".visible .entry f(" in ended.stdout, ended.stdout + ended.stderr
    assert "mul" in ended.stdout
    assert "fma" not in ended.stdout


def test_a_kernel_that_does_not_compile() -> None:
    code = """
from accelera.tensora.core import native
from accelera.tensora import cuda
try:
    native.cuda_compile("nonsense", "sm_90")
except RuntimeError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "does not compile for sm_90" in found.stdout or "libnvrtc.so) of a version" in found.stdout
