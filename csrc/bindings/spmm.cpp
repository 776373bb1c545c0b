#include "cpu/spmm.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/complex.h>
#include <nanobind/stl/pair.h>

#include <complex>

#include "common/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace accelera {
namespace {

using Vector = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Operand = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Result = nb::ndarray<nb::ndim<2>, nb::device::cpu>;
using Range = std::pair<int64_t, int64_t>;

template <class Array>
MatrixView view(const Array& x) {
    return {const_cast<void*>(static_cast<const void*>(x.data())), static_cast<int64_t>(x.shape(0)),
            static_cast<int64_t>(x.shape(1)), x.stride(0), x.stride(1)};
}

cpu::SparseItem item_of(nb::dlpack::dtype type) {
    if (type == nb::dtype<float>()) return cpu::SparseItem::f32;
    if (type == nb::dtype<double>()) return cpu::SparseItem::f64;
    if (type == nb::dtype<std::complex<float>>()) return cpu::SparseItem::c64;
    if (type == nb::dtype<std::complex<double>>()) return cpu::SparseItem::c128;
    if (type == nb::dtype<int32_t>()) return cpu::SparseItem::i32;
    if (type == nb::dtype<int64_t>()) return cpu::SparseItem::i64;
    throw ArgumentError("[spmm] elements are float32, float64, complex64, complex128, int32 or int64");
}

void require(bool holds, const char* message) {
    if (!holds) throw ArgumentError(message);
}

void spmm(const Vector& pointers, const Vector& indices, const Vector& values, bool by_rows, bool sorted,
          Range rows, Range cols, const Operand& b, const Result& c, bool accumulate, int threads) {
    const cpu::SparseItem item = item_of(values.dtype());
    if (b.dtype() != values.dtype() || c.dtype() != values.dtype())
        throw ArgumentError("[spmm] values, b and c must have one dtype between them; convert the operands");
    const bool wide = pointers.dtype() == nb::dtype<int64_t>();
    require((wide || pointers.dtype() == nb::dtype<int32_t>()) && indices.dtype() == pointers.dtype(),
            "[spmm] pointers and indices must both be int32 or int64");
    const MatrixView from = view(b), to = view(c);
    const Range lines = by_rows ? rows : cols;
    require(0 <= rows.first && rows.first <= rows.second && 0 <= cols.first && cols.first <= cols.second &&
                lines.second < static_cast<int64_t>(pointers.shape(0)),
            "[spmm] the block does not lie in the matrix");
    require(to.rows == rows.second - rows.first && from.rows == cols.second - cols.first &&
                from.cols == to.cols && indices.shape(0) == values.shape(0),
            "[spmm] (m, k) @ (k, n) -> (m, n) does not hold; reshape the operands");
    const cpu::SparseBlock block{pointers.data(), indices.data(), values.data(), wide,       by_rows,
                                 sorted,          rows.first,     rows.second,   cols.first, cols.second};
    const nb::gil_scoped_release released;
    cpu::spmm(block, from, to, item, accumulate, threads);
}

}  // namespace
}  // namespace accelera

void init_spmm(nb::module_& module) {
    module.def(
        "spmm", &accelera::spmm, "pointers"_a.noconvert(), "indices"_a.noconvert(), "values"_a.noconvert(),
        "by_rows"_a, "in_order"_a, "rows"_a, "cols"_a, "b"_a.noconvert(), "c"_a.noconvert(),
        "accumulate"_a = false, "threads"_a = 0,
        "c = s @ b, or c += s @ b, for the block [rows, cols) of a sparse matrix s, CSR (by_rows) or CSC.\n\n"
        "The caller has checked that pointers and indices stay in the matrix. Raises TypeError for other\n"
        "dtypes and ValueError for shapes that do not fit.");
}
