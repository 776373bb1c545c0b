#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "tensora/base/base.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

/// Load the OpenBLAS at this path, and let its jobs run on the pool's threads. Raises when it is no OpenBLAS.
void load_blas(const char* path);
/// Let it use as many threads as the pool has.
void set_blas_threads();
/// A function of the library, as "dgesdd_"; raises when there is none.
void* blas_function(const char* name);

/// The right to call the library, held by one thread at a time: parallel sections of OpenBLAS that overlap
/// use the same buffers, and then wait for each other for ever. Nests. A piece of the pool needs none, since
/// the operation that it is a part of holds it.
class BlasTurn {
  public:
    BlasTurn();
    ~BlasTurn();
    BlasTurn(const BlasTurn&) = delete;

  private:
    std::recursive_mutex* held_;
};

/// Take the right before a fork and release it afterwards, in the thread that forks: the library ends its
/// threads in between, and would wait for ever for one that computes.
void hold_blas();
void release_blas();

/// While it lives, the library stays on its callers' threads: they are pieces of an operation on the pool.
class BlasOnOneThread {
  public:
    BlasOnOneThread();
    ~BlasOnOneThread();

  private:
    BlasTurn turn_;
};

/// While it lives, a call of LAPACK in this thread, which has the turn, can be given up: once an interrupt
/// waits, the library's parallel sections do nothing. LAPACK then ends soon, with finite numbers or a code of
/// failure, both of which are discarded. No handler runs inside the library, as that may call it.
class InterruptibleBlas {
  public:
    /// `longest`: extent of the matrix. Beyond that of vectors which the library gives to several threads,
    /// positions of largest elements come from parallel sections, so nothing is given up.
    explicit InterruptibleBlas(int64_t longest);
    ~InterruptibleBlas();
    InterruptibleBlas(const InterruptibleBlas&) = delete;

    /// Whether the call is given up; asks for an interrupt now and then.
    bool is_given_up();
    /// Let a call of this thread find zeros in its matrix once it is given up: an iteration then ends at
    /// once. Without it the QR algorithm goes on with what parallel sections have left.
    static void clear_when_given_up(void* matrix, int64_t nbytes);
    /// Throw what the interrupt is for where the call was given up.
    void finish();

  private:
    InterruptibleBlas* const outer_;
    const bool may_end_;
    bool given_up_ = false;
    void* matrix_ = nullptr;
    int64_t nbytes_ = 0;
    std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
};

/// A matrix in memory: `rows` x `columns` with neighbours in a row `column_step` elements apart.
struct MatrixView {
    const void* data;
    int64_t rows, columns;
    int64_t row_step, column_step;

    bool by_rows() const { return column_step == 1 && row_step >= columns; }
    bool by_columns() const { return row_step == 1 && column_step >= rows; }
};

/// What happens to the rows of a product beside the multiplication.
struct ProductRows {
    const void* bias = nullptr;      ///< contiguous row that is added to each; null: none
    const RowsDone* done = nullptr;  ///< told once of each row
    int64_t first = 0;               ///< number of the first row, as `done` is told
};

/// c = a b, contiguous; `a` and `b` lie by rows or by columns, and have elements of float32, float64 or a
/// complex type.
void gemm(DType dtype, const MatrixView& a, const MatrixView& b, void* c, const ProductRows& rows = {});
/// Rows of the panels in which `gemm` computes a product: of one with a short inner extent, whose time is
/// that of its memory, they stay in the cache until `done` is told of them. 0: all threads compute one whole
/// product.
int64_t panel_rows(DType dtype, int64_t rows, int64_t inner, int64_t columns);

// --- calling LAPACK --------------------------------------------------------------------------------------

template <typename E>
struct RealOf {
    using type = E;
};
template <typename E>
struct RealOf<std::complex<E>> {
    using type = E;
};
template <typename E>
using Real = typename RealOf<E>::type;

template <typename E>
constexpr char letter = std::is_same_v<E, float>    ? 's'
                        : std::is_same_v<E, double> ? 'd'
                        : std::is_same_v<E, C64>    ? 'c'
                                                    : 'z';

/// The LAPACK routine for elements of this type: "potrf" is dpotrf_ for doubles.
template <typename E>
void* routine(const char* name) {
    return blas_function((std::string(1, letter<E>) + name + "_").c_str());
}

/// A call of the library. When the program ends, the library's destructors wait for the calls of threads that
/// go on, and no further call begins.
class InsideBlas {
  public:
    InsideBlas();
    ~InsideBlas();
    InsideBlas(const InsideBlas&) = delete;

    /// Wait for the end of the process in a thread that may be inside, and not be waited for.
    [[noreturn]] static void wait_for_exit();
};

/// Call a Fortran routine: pointers, then the lengths of the strings among them.
template <typename... Args>
void fortran(void* function, Args*... args) {
    constexpr size_t strings = (size_t(std::is_same_v<Args, const char>) + ... + 0);
    const InsideBlas inside;
    [&]<size_t... i>(std::index_sequence<i...>) {
        reinterpret_cast<void (*)(Args*..., decltype(size_t(i))...)>(function)(args...,
                                                                               (void(i), size_t(1))...);
    }(std::make_index_sequence<strings>());
}

/// Call `function` with the Tag of the element type, one of the four that LAPACK has.
template <typename Function>
void visit_lapack(DType dtype, Function&& function) {
    if (dtype == DType::f32)
        function(Tag<float>());
    else if (dtype == DType::f64)
        function(Tag<double>());
    else if (dtype == DType::c64)
        function(Tag<C64>());
    else
        function(Tag<C128>());
}

/// Elements of workspace that a query answered, as a number of the element type.
template <typename E>
int workspace(E answer) {
    const double size = double(std::real(answer)) * (1 + 1e-6) + 1;
    require(size < double(INT32_MAX), "[linalg] the matrix is too large for LAPACK, which would need ", size,
            " elements of workspace");
    return int(size);
}

/// Leading dimension as LAPACK accepts it.
inline int leading(int n) { return std::max(1, n); }

}  // namespace accelera::tensora
