#include "cpu/igemm.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <stdexcept>
#include <string>

#include "common/error.h"
#include "cuda/grid.h"
#include "cuda/igemm.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace accelera {
namespace {

using Operand = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Result = nb::ndarray<nb::ndim<2>, nb::device::cpu>;
using Strides = std::pair<int64_t, int64_t>;

template <class Array>
MatrixView view(const Array& x) {
    return {const_cast<void*>(static_cast<const void*>(x.data())), static_cast<int64_t>(x.shape(0)),
            static_cast<int64_t>(x.shape(1)), x.stride(0), x.stride(1)};
}

std::string shape(const MatrixView& x) {
    return "(" + std::to_string(x.rows) + ", " + std::to_string(x.cols) + ")";
}

void require_integers(nb::dlpack::dtype a, nb::dlpack::dtype b, nb::dlpack::dtype c) {
    const auto code = static_cast<nb::dlpack::dtype_code>(c.code);
    const bool integer = code == nb::dlpack::dtype_code::Int || code == nb::dlpack::dtype_code::UInt;
    if (!integer || a != c || b != c)
        throw ArgumentError(
            "[igemm] a, b and c must have one integer dtype between them; convert the operands");
}

void require_shapes(const MatrixView& a, const MatrixView& b, const MatrixView& c) {
    if (a.cols == b.rows && a.rows == c.rows && b.cols == c.cols) return;
    const std::string message = "[igemm] (m, k) @ (k, n) -> (m, n) does not hold for " + shape(a) + " @ " +
                                shape(b) + " -> " + shape(c) + "; reshape the operands";
    throw ArgumentError(message);
}

void require_width(int width) {
    if (width != 1 && width != 2 && width != 4 && width != 8)
        throw ArgumentError("[igemm] an integer has 1, 2, 4 or 8 bytes; give the operands' item size");
}

void igemm(const Operand& a, const Operand& b, const Result& c, bool accumulate, int threads) {
    const MatrixView left = view(a), right = view(b), target = view(c);
    require_integers(a.dtype(), b.dtype(), c.dtype());
    require_shapes(left, right, target);
    const nb::gil_scoped_release released;
    cpu::igemm(left, right, target, static_cast<int>(c.itemsize()), accumulate, threads);
}

void igemm_cuda(uintptr_t a, uintptr_t b, uintptr_t c, int64_t m, int64_t n, int64_t k, Strides a_strides,
                Strides b_strides, Strides c_strides, int itemsize, bool accumulate, uintptr_t stream) {
    require_width(itemsize);
    const auto matrix = [](uintptr_t pointer, int64_t rows, int64_t cols, Strides strides) {
        return MatrixView{reinterpret_cast<void*>(pointer), rows, cols, strides.first, strides.second};
    };
    const nb::gil_scoped_release released;
    cuda::igemm(matrix(a, m, k, a_strides), matrix(b, k, n, b_strides), matrix(c, m, n, c_strides), itemsize,
                accumulate, reinterpret_cast<void*>(stream));
}

}  // namespace
}  // namespace accelera

void init_igemm(nb::module_& module) {
    module.def("igemm", &accelera::igemm, "a"_a.noconvert(), "b"_a.noconvert(), "c"_a.noconvert(),
               "accumulate"_a = false, "threads"_a = 0,
               "c = a @ b, or c += a @ b, of 2-D integer arrays (m, k) @ (k, n) -> (m, n) of one dtype.\n\n"
               "Wraps around like NumPy; takes any strides; c shares no memory with a or b. threads=0 means\n"
               "every core. Raises TypeError for other dtypes and ValueError for shapes that do not fit.");
    module.def(
        "igemm_workspace_bytes",
        [](int itemsize, int threads) {
            accelera::require_width(itemsize);
            return accelera::cpu::igemm_workspace_bytes(itemsize, threads);
        },
        "itemsize"_a, "threads"_a = 0, "The most bytes igemm allocates while it runs.");
    module.def("igemm_cuda", &accelera::igemm_cuda, "a"_a, "b"_a, "c"_a, "m"_a, "n"_a, "k"_a, "a_strides"_a,
               "b_strides"_a, "c_strides"_a, "itemsize"_a, "accumulate"_a = false, "stream"_a = 0,
               "igemm on device pointers of the current CUDA device; strides count items, stream is a\n"
               "cudaStream_t. Returns once queued. Raises RuntimeError when the build has no CUDA kernels.");
    module.def(
        "igemm_cuda_launches",
        [](int64_t rows, int64_t cols) {
            nb::list found;
            for (const accelera::cuda::Launch& each : accelera::cuda::launches(rows, cols))
                found.append(nb::make_tuple(each.row, each.col, each.rows, each.cols, each.x, each.y));
            return found;
        },
        "rows"_a, "cols"_a,
        "The launches of igemm_cuda for a result: first row and column, rows and columns, and thread blocks\n"
        "along rows and columns.");
    module.def("cuda_compiled", &accelera::cuda::compiled, "Whether the CUDA kernels are in this build.");
}
