#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensora/base/interrupt.h"
#include "tensora/base/threads.h"
#include "tensora/core/op.h"
#include "tensora/kernels/blas.h"

/// Batches of matrices as operations pass them to LAPACK.
namespace accelera::tensora {

inline Dims batch_of(const Dims& shape) { return Dims(shape.begin(), shape.size() - 2); }
inline int rows_of(const Tensor& x) { return int(x.shape()[x.dims() - 2]); }
inline int columns_of(const Tensor& x) { return int(x.shape().back()); }
inline int64_t matrices_of(const Tensor& x) { return batch_of(x.shape()).product(); }

inline Dims with_axes(Dims batch, std::initializer_list<int64_t> axes) {
    for (int64_t extent : axes) batch.push_back(extent);
    return batch;
}

inline void check_matrix(const char* op, const Tensor& x) {
    require_shape(x.dims() >= 2, "[", op, "] shape ", x.shape().words(),
                  "; a matrix or a batch of them is needed, with two axes at least");
    for (int axis = x.dims() - 2; axis < x.dims(); ++axis)
        require_shape(x.shape()[axis] <= INT32_MAX, "[", op, "] shape ", x.shape().words(),
                      "; LAPACK takes at most ", INT32_MAX, " rows or columns");
}

inline void check_square(const char* op, const Tensor& x) {
    check_matrix(op, x);
    require_shape(rows_of(x) == columns_of(x), "[", op, "] shape ", x.shape().words(),
                  "; square matrices are needed, with as many rows as columns");
}

/// Call `body(i)` for each matrix of a batch, small ones side by side; the LAPACK code of the first that
/// fails.
struct Failure {
    int64_t matrix = -1;
    int code = 0;
};
template <typename Body>
Failure each_matrix(const Call& call, int64_t n, double flops, Body body) {
    std::vector<int> codes(static_cast<size_t>(n));
    const BlasTurn turn;
    const int longest = std::max(rows_of(call.input()), columns_of(call.input()));
    std::optional<InterpreterReleased> released;
    if (flops * double(n) > 1e6) released.emplace();
    const auto range = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) codes[size_t(i)] = body(i);
    };
    if (n >= int64_t(2) * thread_count() && flops < double(1 << 24)) {
        const BlasOnOneThread one_thread;
        parallel_for(n, std::max<int64_t>(1, int64_t(8.0 * double(grain) / (flops + 100))), range);
    } else {
        for (int64_t i = 0; i < n; ++i) {
            check_interrupt();
            InterruptibleBlas interruptible(longest);
            range(i, i + 1);
            interruptible.finish();
        }
    }
    for (int64_t i = 0; i < n; ++i)
        if (codes[size_t(i)]) return {i, codes[size_t(i)]};
    return {};
}

/// "[cholesky] the matrix", or "[cholesky] matrix 3 of the batch".
inline std::string which(const Call& call, const Failure& failure) {
    const bool batch = call.input().dims() > 2;
    return batch ? text("[", call.op.name, "] matrix ", failure.matrix, " of the batch")
                 : text("[", call.op.name, "] the matrix");
}

inline void raise_singular(const Call& call, const Failure& failure) {
    if (failure.code)
        fail(Kind::value, which(call, failure), " is singular (pivot ", failure.code,
             " is zero); pinv() takes such matrices");
}

inline void raise_not_converged(const Call& call, const Failure& failure) {
    if (failure.code)
        fail(Kind::value, which(call, failure), " has no decomposition that was found (LAPACK's code ",
             failure.code, "); see that it holds no NaN or infinity");
}

inline double cube(const Call& call) {
    const Tensor& x = call.input();
    const double m = rows_of(x), n = columns_of(x);
    return m * n * std::min(m, n);
}

/// Cost of an operation of this many m n min(m, n).
template <int thirds>
Cost cubic(const Call& call) {
    Cost cost{cube(call) * thirds / 3 * double(matrices_of(call.input())), 0};
    for (const T& x : call.in) cost.bytes += double(x->size() * size_of(x->dtype()));
    for (int i = 0; i < call.op.outputs; ++i)
        cost.bytes += double(call.made[i].shape.product() * size_of(call.made[i].dtype));
    return cost;
}

constexpr uint8_t lapack_types = reals | complexes;

}  // namespace accelera::tensora
