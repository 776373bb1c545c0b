// Entries of the solvers and decompositions of linear algebra, on the LAPACK that OpenBLAS brings.
//
// LAPACK's matrices lie by columns, Tensora's by rows: what is a matrix here is its transpose there. Where
// the transpose has the wanted decomposition too, nothing is copied into another order.
//
// Gradients: M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
// differentiation" (2008); M. Seeger et al., "Auto-differentiating linear algebra" (2017, arXiv:1710.08717);
// for complex matrices as in PyTorch's FunctionsManual: the gradient g of L(z) is such that dL = Re(conj(g)
// dz).
#include "tensora/ops/linalg.h"

#include <cmath>
#include <optional>

#include "tensora/core/autograd.h"
#include "tensora/core/released.h"
#include "tensora/core/threads.h"
#include "tensora/functions.h"
#include "tensora/kernels/blas.h"
#include "tensora/kernels/lines.h"

namespace accelera::tensora {

namespace {

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

/// Call a Fortran routine: pointers, then the lengths of the strings among them.
template <typename... Args>
void fortran(void* function, Args*... args) {
    constexpr size_t strings = (size_t(std::is_same_v<Args, const char>) + ... + 0);
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
    require(size < double(INT32_MAX), "linalg: the matrix is too large for LAPACK, which would need ", size,
            " elements of workspace");
    return int(size);
}

/// Leading dimension as LAPACK accepts it.
int leading(int n) { return std::max(1, n); }

// --- batches ---------------------------------------------------------------------------------------------

Dims batch_of(const Dims& shape) { return Dims(shape.begin(), shape.size() - 2); }
int rows_of(const Tensor& x) { return int(x.shape()[x.dims() - 2]); }
int columns_of(const Tensor& x) { return int(x.shape().back()); }
int64_t matrices_of(const Tensor& x) { return batch_of(x.shape()).product(); }

Dims with_axes(Dims batch, std::initializer_list<int64_t> axes) {
    for (int64_t extent : axes) batch.push_back(extent);
    return batch;
}

void check_matrix(const char* op, const Tensor& x) {
    require(x.dims() >= 2, op, ": shape ", x.shape().words(),
            "; a matrix or a batch of them is needed, with two axes at least");
    for (int axis = x.dims() - 2; axis < x.dims(); ++axis)
        require(x.shape()[axis] <= INT32_MAX, op, ": shape ", x.shape().words(), "; LAPACK takes at most ",
                INT32_MAX, " rows or columns");
}

void check_square(const char* op, const Tensor& x) {
    check_matrix(op, x);
    require(rows_of(x) == columns_of(x), op, ": shape ", x.shape().words(),
            "; square matrices are needed, with as many rows as columns");
}

/// Call `body(i)` for each matrix of a batch, small ones side by side; the LAPACK code of the first that
/// fails.
struct Failure {
    int64_t matrix = -1;
    int code = 0;
};
template <typename Body>
Failure each_matrix(int64_t n, double flops, Body body) {
    std::vector<int> codes(static_cast<size_t>(n));
    const BlasTurn turn;
    std::optional<InterpreterReleased> released;
    if (flops * double(n) > 1e6) released.emplace();
    const auto range = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) codes[size_t(i)] = body(i);
    };
    if (n >= 2 * thread_count() && flops < double(1 << 24)) {
        const BlasOnOneThread one_thread;
        parallel_for(n, std::max<int64_t>(1, int64_t(8.0 * double(grain) / (flops + 100))), range);
    } else {
        for (int64_t i = 0; i < n; ++i) {
            check_interrupt();
            range(i, i + 1);
        }
    }
    for (int64_t i = 0; i < n; ++i)
        if (codes[size_t(i)]) return {i, codes[size_t(i)]};
    return {};
}

/// "cholesky: the matrix", or "cholesky: matrix 3 of the batch".
std::string which(const Call& call, const Failure& failure) {
    const bool batch = call.input().dims() > 2;
    return batch ? text(call.op.name, ": matrix ", failure.matrix, " of the batch")
                 : text(call.op.name, ": the matrix");
}

void raise_singular(const Call& call, const Failure& failure) {
    if (failure.code)
        fail(Kind::value, which(call, failure), " is singular (pivot ", failure.code,
             " is zero); pinv() takes such matrices");
}

void raise_not_converged(const Call& call, const Failure& failure) {
    if (failure.code)
        fail(Kind::value, which(call, failure), " has no decomposition that was found (LAPACK's code ",
             failure.code, "); see that it holds no NaN or infinity");
}

double cube(const Call& call) {
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

// --- matrices in terms of operations ---------------------------------------------------------------------

/// Places with column - row <= diagonal.
T lower_mask(int64_t rows, int64_t columns, int64_t diagonal) {
    const T mask = Tensor::empty({rows, columns}, DType::bool_);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) mask->data<bool>()[i * columns + j] = j - i <= diagonal;
    return mask;
}

T diagonal_mask(int64_t n) { return logical_and(lower_mask(n, n, 0), logical_not(lower_mask(n, n, -1))); }

T adjoint(const T& x) { return is(x->dtype(), complexes) ? conj(mt(x)) : mt(x); }
T conjugate(const T& x) { return is(x->dtype(), complexes) ? conj(x) : x; }
T hermitian(const T& x) { return (x + adjoint(x)) * 0.5; }
T skew(const T& x) { return x - adjoint(x); }

/// Matrix with these elements on its diagonal.
T diagonal_matrix(const T& x) {
    return where(diagonal_mask(x->shape().back()), unsqueeze(x, -1), like(x, 0));
}
/// Zero but for the diagonal.
T diagonal_part(const T& x) { return where(diagonal_mask(x->shape().back()), x, like(x, 0)); }
T as_column(const T& x) { return unsqueeze(x, -1); }
T as_row(const T& x) { return unsqueeze(x, -2); }
/// A number for each matrix, to be multiplied with its elements.
T for_matrices(const T& x) { return as_column(as_column(x)); }

/// x[j] - x[i] at (i, j), and 1 on the diagonal.
T gaps(const T& x) {
    const T one = like(x, 1);
    return where(diagonal_mask(x->shape().back()), one, as_row(x) - as_column(x));
}

T narrowed(const T& x, int axis, int64_t start, int64_t size) {
    return narrow(x, axis_of(axis, x->dims(), "narrow"), start, size);
}

}  // namespace

T lower_triangle(const T& x, int64_t diagonal) {
    return where(lower_mask(x->shape()[x->dims() - 2], x->shape().back(), diagonal), x, like(x, 0));
}
T upper_triangle(const T& x, int64_t diagonal) {
    return where(lower_mask(x->shape()[x->dims() - 2], x->shape().back(), diagonal - 1), like(x, 0), x);
}

namespace {

constexpr uint8_t lapack_types = reals | complexes;

// --- cholesky --------------------------------------------------------------------------------------------

template <typename E>
int factor_cholesky(E* a, int n) {
    static void* const potrf = routine<E>("potrf");
    const int lda = leading(n);
    int info = 0;
    // By columns this is conj(A) = Uᴴ U, and Uᵀ = L.
    fortran(potrf, "U", &n, a, &lda, &info);
    for (int64_t i = 0; i < n; ++i) std::fill(a + i * n + i + 1, a + (i + 1) * n, E(0));
    return info;
}

void cholesky_kernel(Call& call) {
    copy_elements(call.input(), *call.out[0]);
    const int n = columns_of(call.input());
    Failure failure;
    visit_lapack(call.out[0]->dtype(), [&]<typename E>(Tag<E>) {
        E* const out = call.out[0]->data<E>();
        failure = each_matrix(matrices_of(call.input()), cube(call),
                              [&](int64_t i) { return factor_cholesky(out + i * n * n, n); });
    });
    if (failure.code)
        fail(Kind::value, which(call, failure), " is not positive definite (leading minor ", failure.code,
             "); eigvalsh() shows how far from it, and adding a multiple of the identity helps");
}

/// L⁻ᴴ herm(Φ(Lᴴ g)) L⁻¹, where Φ takes the lower triangle and half of the diagonal.
T cholesky_gradient(const T& l, const T& g) {
    const T product = lower_triangle(matmul(adjoint(l), g), 0);
    const T phi = product - diagonal_part(product) * 0.5;
    const T upper = adjoint(l);
    const T left = solve_triangular(upper, hermitian(phi), true);
    return adjoint(solve_triangular(upper, adjoint(left), true));
}

void square_rule(Call& call) {
    check_square(call.op.name, call.input());
    call.make(call.input().shape(), call.input().dtype());
}

const Op& cholesky_op =
    enter({.name = "cholesky",
           .family = Family::linalg,
           .arity = 1,
           .types = lapack_types,
           .rule = square_rule,
           .cpu = cholesky_kernel,
           .vjp = [](Backward& c) { c.give(0, [&] { return cholesky_gradient(c.output(), c.grad()); }); },
           .saves = out0,
           .cost = cubic<1>});

// --- solvers ---------------------------------------------------------------------------------------------

/// Substitution, after a factorisation of this many thirds of n^3.
template <int thirds>
Cost cost_of_solving(const Call& call) {
    Cost cost = cubic<thirds>(call);
    cost.flops += 2 * double(call.input(0).size()) * columns_of(call.input(1));
    return cost;
}

/// Both inputs have the same batch, as solve() makes it.
void solve_rule(Call& call) {
    const Tensor &a = call.input(0), &b = call.input(1);
    check_square(call.op.name, a);
    check_matrix(call.op.name, b);
    require(rows_of(a) == rows_of(b), call.op.name, ": matrices of shape ", a.shape().words(),
            " and right-hand sides of shape ", b.shape().words(), "; these need ", rows_of(a), " rows");
    call.make(b.shape(), promote(a.dtype(), b.dtype()));
}

/// The solution in place of `b`, both matrices by rows. By columns that is Xᵀ Aᵀ = Bᵀ, and Aᵀ = P L U: two
/// triangular solves from the right, then the exchanges that P is made of, last first.
template <typename E>
int solve_one(E* a, E* b, int n, int k) {
    static void* const getrf = routine<E>("getrf");
    static void* const trsm = routine<E>("trsm");
    std::vector<int> pivots(static_cast<size_t>(leading(n)));
    const int lda = leading(n), ldb = leading(k);
    int info = 0;
    fortran(getrf, &n, &n, a, &lda, pivots.data(), &info);
    if (info || k == 0) return info;
    const E one = 1;
    fortran(trsm, "R", "U", "N", "N", &k, &n, &one, a, &lda, b, &ldb);
    fortran(trsm, "R", "L", "N", "U", &k, &n, &one, a, &lda, b, &ldb);
    for (int64_t i = n - 1; i >= 0; --i) {
        const int64_t other = pivots[size_t(i)] - 1;
        if (other != i) std::swap_ranges(b + i * k, b + (i + 1) * k, b + other * k);
    }
    return 0;
}

void solve_kernel(Call& call) {
    Tensor& out = *call.out[0];
    const T a = copy(cast(call.in[0], out.dtype()));
    copy_elements(call.input(1), out);
    const int n = rows_of(*a), k = columns_of(out);
    Failure failure;
    visit_lapack(out.dtype(), [&]<typename E>(Tag<E>) {
        failure = each_matrix(matrices_of(*a), cube(call) + double(n) * n * k, [&](int64_t i) {
            return solve_one(a->data<E>() + i * n * n, out.data<E>() + i * n * k, n, k);
        });
    });
    raise_singular(call, failure);
}

const Op& solve_op = enter({.name = "solve",
                            .family = Family::linalg,
                            .arity = 2,
                            .types = lapack_types,
                            .rule = solve_rule,
                            .cpu = solve_kernel,
                            .vjp =
                                [](Backward& c) {
                                    const T gb = solve(adjoint(c.input(0)), c.grad());
                                    c.give(1, gb);
                                    c.give(0, [&] { return -matmul(gb, adjoint(c.output())); });
                                },
                            .saves = in0 | out0,
                            .cost = cost_of_solving<2>});

void solve_triangular_kernel(Call& call) {
    Tensor& out = *call.out[0];
    const T a = contiguous(cast(call.in[0], out.dtype()));
    copy_elements(call.input(1), out);
    const int n = rows_of(*a), k = columns_of(out), lda = leading(n), ldb = leading(k);
    visit_lapack(out.dtype(), [&]<typename E>(Tag<E>) {
        static void* const trsm = routine<E>("trsm");
        const E one = 1;
        each_matrix(matrices_of(*a), double(n) * n * k, [&](int64_t i) {
            // By columns: Xᵀ Aᵀ = Bᵀ.
            if (n && k)
                fortran(trsm, "R", call.params.flag ? "L" : "U", "N", "N", &k, &n, &one,
                        a->data<E>() + i * n * n, &lda, out.data<E>() + i * n * k, &ldb);
            return 0;
        });
    });
}

/// flag: the upper triangle is read, not the lower.
const Op& solve_triangular_op =
    enter({.name = "solve_triangular",
           .family = Family::linalg,
           .arity = 2,
           .types = lapack_types,
           .rule = solve_rule,
           .cpu = solve_triangular_kernel,
           .vjp =
               [](Backward& c) {
                   const bool upper = c.params().flag;
                   const T gb = solve_triangular(adjoint(c.input(0)), c.grad(), !upper);
                   c.give(1, gb);
                   c.give(0, [&] {
                       const T ga = -matmul(gb, adjoint(c.output()));
                       return upper ? upper_triangle(ga, 0) : lower_triangle(ga, 0);
                   });
               },
           .saves = in0 | out0,
           .cost = cost_of_solving<0>});

template <typename E>
int invert_one(E* a, int n) {
    static void* const getrf = routine<E>("getrf");
    static void* const getri = routine<E>("getri");
    std::vector<int> pivots(static_cast<size_t>(leading(n)));
    const int lda = leading(n);
    int info = 0, size = -1;
    fortran(getrf, &n, &n, a, &lda, pivots.data(), &info);
    if (info) return info;
    E answer = 0;
    fortran(getri, &n, a, &lda, pivots.data(), &answer, &size, &info);
    size = workspace(answer);
    const Scratch work(size * int64_t(sizeof(E)));
    fortran(getri, &n, a, &lda, pivots.data(), work.as<E>(), &size, &info);
    return info;
}

const Op& inv_op =
    enter({.name = "inv",
           .family = Family::linalg,
           .arity = 1,
           .types = lapack_types,
           .rule = square_rule,
           .cpu =
               [](Call& call) {
                   copy_elements(call.input(), *call.out[0]);
                   const int n = columns_of(call.input());
                   Failure failure;
                   visit_lapack(call.out[0]->dtype(), [&]<typename E>(Tag<E>) {
                       E* const out = call.out[0]->data<E>();
                       failure = each_matrix(matrices_of(call.input()), 2 * cube(call),
                                             [&](int64_t i) { return invert_one(out + i * n * n, n); });
                   });
                   raise_singular(call, failure);
               },
           .vjp =
               [](Backward& c) {
                   c.give(0, [&] {
                       const T y = adjoint(c.output());
                       return -matmul(y, matmul(c.grad(), y));
                   });
               },
           .saves = out0,
           .cost = cubic<6>});

// --- determinants ----------------------------------------------------------------------------------------

/// LU factors in place of a matrix; whether an odd number of rows was exchanged.
template <typename E>
bool factor_lu(E* a, int n) {
    static void* const getrf = routine<E>("getrf");
    std::vector<int> pivots(static_cast<size_t>(leading(n)));
    const int lda = leading(n);
    int info = 0;  // a zero pivot is a zero determinant
    fortran(getrf, &n, &n, a, &lda, pivots.data(), &info);
    bool odd = false;
    for (int i = 0; i < n; ++i) odd ^= pivots[size_t(i)] != i + 1;
    return odd;
}

void det_kernel(Call& call) {
    const T work = copy(call.in[0]);
    const int n = columns_of(*work);
    visit_lapack(work->dtype(), [&]<typename E>(Tag<E>) {
        each_matrix(matrices_of(*work), cube(call), [&](int64_t i) {
            E* const a = work->data<E>() + i * n * n;
            E product = factor_lu(a, n) ? -1 : 1;
            for (int64_t k = 0; k < n; ++k) product *= a[k * n + k];
            call.out[0]->data<E>()[i] = product;
            return 0;
        });
    });
}

void slogdet_kernel(Call& call) {
    const T work = copy(call.in[0]);
    const int n = columns_of(*work);
    visit_lapack(work->dtype(), [&]<typename E>(Tag<E>) {
        each_matrix(matrices_of(*work), cube(call), [&](int64_t i) {
            E* const a = work->data<E>() + i * n * n;
            E sign = factor_lu(a, n) ? -1 : 1;
            Real<E> logarithm = 0;
            for (int64_t k = 0; k < n; ++k) {
                const E pivot = a[k * n + k];
                const Real<E> modulus = std::abs(pivot);
                sign *= modulus == 0 ? E(0) : pivot / modulus;
                logarithm += std::log(modulus);
            }
            call.out[0]->data<E>()[i] = sign;
            call.out[1]->data<Real<E>>()[i] = logarithm;
            return 0;
        });
    });
}

/// Gradient of the determinant where matrices may be singular: the matrix of cofactors from the singular
/// value decomposition, det(U) conj(det(V)) U diag(product of the other singular values) Vᴴ, conjugated.
T cofactors(const T& x) {
    static const Op& prod = op_named("prod");
    const auto [u, s, vh] = svd(x, false);
    const T others = where(diagonal_mask(s->shape().back()), like(s, 1), as_row(s));
    Params params;
    params.a = {others->dims() - 1};
    const T products = run(prod, params, others);
    return for_matrices(conjugate(det(u) * det(vh))) * matmul(u * as_row(products), vh);
}

bool any_zero(const T& x) {
    const GradMode off(false);
    bool found = false;
    const T zero = contiguous(equal(x, like(x, 0)));
    for (int64_t i = 0; i < zero->size(); ++i) found = found || zero->data<bool>()[i];
    return found;
}

const Op& det_op = enter({.name = "det",
                          .family = Family::linalg,
                          .arity = 1,
                          .types = lapack_types,
                          .rule =
                              [](Call& call) {
                                  check_square("det", call.input());
                                  call.make(batch_of(call.input().shape()), call.input().dtype());
                              },
                          .cpu = det_kernel,
                          .vjp =
                              [](Backward& c) {
                                  c.give(0, [&] {
                                      const T x = c.input(), g = c.grad();
                                      if (any_zero(c.output()->detach()))
                                          return for_matrices(g) * cofactors(x);
                                      return for_matrices(g * conjugate(c.output())) * adjoint(inv(x));
                                  });
                              },
                          .saves = in0 | out0,
                          .cost = cubic<2>});

const Op& slogdet_op =
    enter({.name = "slogdet",
           .family = Family::linalg,
           .arity = 1,
           .outputs = 2,
           .types = lapack_types,
           .rule =
               [](Call& call) {
                   check_square("slogdet", call.input());
                   call.make(batch_of(call.input().shape()), call.input().dtype());
                   call.make(batch_of(call.input().shape()), real_of(call.input().dtype()), 1);
               },
           .cpu = slogdet_kernel,
           .vjp =
               [](Backward& c) {
                   c.give(0, [&] {
                       T g = c.grad(1);
                       if (is(c.dtype(), complexes))
                           g = complex(g, c.has_grad(0) ? -imag(conj(c.grad(0)) * c.output())
                                                        : zeros(g->shape(), g->dtype()));
                       return for_matrices(g) * adjoint(inv(c.input()));
                   });
               },
           .saves = in0 | out0,
           .cost = cubic<2>});

// --- qr --------------------------------------------------------------------------------------------------

/// `a`: m x n by columns; `q`: m x columns by columns, made of it; `r`: by rows.
template <typename E>
int factor_qr(E* a, int m, int n, E* q, int columns, E* r) {
    static void* const geqrf = routine<E>("geqrf");
    static void* const orgqr = routine<E>(is_complex<E> ? "ungqr" : "orgqr");
    const int k = std::min(m, n), lda = leading(m);
    std::vector<E> tau(static_cast<size_t>(leading(k)));
    int info = 0, size = -1;
    E answers[2] = {0, 0};
    fortran(geqrf, &m, &n, a, &lda, tau.data(), answers, &size, &info);
    fortran(orgqr, &m, &columns, &k, q, &lda, tau.data(), answers + 1, &size, &info);
    size = std::max(workspace(answers[0]), workspace(answers[1]));
    const Scratch work(size * int64_t(sizeof(E)));
    fortran(geqrf, &m, &n, a, &lda, tau.data(), work.as<E>(), &size, &info);
    for (int64_t i = 0; i < columns; ++i)
        for (int64_t j = 0; j < n; ++j) r[i * n + j] = j >= i && i < k ? a[j * m + i] : E(0);
    std::copy_n(a, int64_t(k) * m, q);
    fortran(orgqr, &m, &columns, &k, q, &lda, tau.data(), work.as<E>(), &size, &info);
    return 0;
}

void qr_kernel(Call& call) {
    const T a = copy(mt(call.in[0]));
    const int m = columns_of(*a), n = rows_of(*a), columns = columns_of(*call.out[0]);
    const T q = Tensor::empty(mt(call.out[0])->shape(), a->dtype());
    visit_lapack(a->dtype(), [&]<typename E>(Tag<E>) {
        each_matrix(matrices_of(*a), 4 * cube(call), [&](int64_t i) {
            return factor_qr(a->data<E>() + i * m * n, m, n, q->data<E>() + i * m * columns, columns,
                             call.out[1]->data<E>() + i * columns * n);
        });
    });
    copy_elements(*mt(q), *call.out[0]);
}

/// Of A = Q R with square R: (gQ + Q sym(triu(gR Rᴴ - Qᴴ gQ))) R⁻ᴴ, where sym mirrors the triangle.
T qr_gradient(const T& q, const T& r, const T& gq, const T& gr) {
    const T triangle = upper_triangle(matmul(gr, adjoint(r)) - matmul(adjoint(q), gq), 0);
    const T mirrored = triangle + adjoint(triangle);
    const T right = gq + matmul(q, mirrored - diagonal_part(mirrored) * 0.5);
    return adjoint(solve_triangular(r, adjoint(right), true));
}

/// Where A = [A1, A2] is wider than high, A1 = Q R1 is square and R2 = Qᴴ A2.
T wide_qr_gradient(const T& q, const T& r, const T& gq, const T& gr) {
    const int64_t m = r->shape()[r->dims() - 2], n = r->shape().back();
    const T r1 = narrowed(r, -1, 0, m), r2 = narrowed(r, -1, m, n - m);
    const T g1 = narrowed(gr, -1, 0, m), g2 = narrowed(gr, -1, m, n - m);
    const T left = qr_gradient(q, r1, gq + matmul(matmul(q, r2), adjoint(g2)), g1);
    return concat({left, matmul(q, g2)}, -1);
}

/// flag: complete.
const Op& qr_op =
    enter({.name = "qr",
           .family = Family::linalg,
           .arity = 1,
           .outputs = 2,
           .types = lapack_types,
           .rule =
               [](Call& call) {
                   const Tensor& x = call.input();
                   check_matrix("qr", x);
                   const int64_t m = rows_of(x), n = columns_of(x),
                                 columns = call.params.flag ? m : std::min(m, n);
                   call.make(with_axes(batch_of(x.shape()), {m, columns}), x.dtype());
                   call.make(with_axes(batch_of(x.shape()), {columns, n}), x.dtype(), 1);
               },
           .cpu = qr_kernel,
           .vjp =
               [](Backward& c) {
                   const int64_t m = c.shape()[c.shape().size() - 2], n = c.shape().back();
                   if (c.params().flag && m > n)
                       fail(Kind::runtime, "backward of 'qr': with mode='complete' the last ", m - n,
                            " columns of Q are not determined by a matrix of shape ", c.shape().words(),
                            ", so they have no gradient; use mode='reduced'");
                   c.give(0, [&] {
                       return (m < n ? wide_qr_gradient : qr_gradient)(c.output(0), c.output(1), c.grad(0),
                                                                       c.grad(1));
                   });
               },
           .saves = out0 | out1,
           .cost = cubic<12>});

// --- svd -------------------------------------------------------------------------------------------------

template <typename E>
void identity(E* a, int64_t n) {
    std::fill_n(a, n * n, E(0));
    for (int64_t i = 0; i < n; ++i) a[i * n + i] = 1;
}

/// Decomposition of an m x n matrix by columns; `a` is overwritten. `job`: "N" no vectors, "S" thin, "A"
/// full.
template <typename E>
int decompose_svd(const char* job, E* a, int m, int n, Real<E>* s, E* u, E* vt) {
    static void* const gesdd = routine<E>("gesdd");
    const int64_t k = std::min(m, n), larger = std::max(m, n);
    const int lda = leading(m), ldvt = leading(job[0] == 'A' ? n : int(k));
    const Scratch integers(8 * std::max<int64_t>(1, k) * int64_t(sizeof(int)));
    const int64_t reals_needed =
        is_complex<E> ? std::max(5 * k * k + 7 * k, 2 * larger * k + 2 * k * k + k) + 1 : 1;
    const Scratch real_work(reals_needed * int64_t(sizeof(Real<E>)));
    int size = -1, info = 0;
    const auto call = [&](E* work) {
        if constexpr (is_complex<E>)
            fortran(gesdd, job, &m, &n, a, &lda, s, u, &lda, vt, &ldvt, work, &size, real_work.as<Real<E>>(),
                    integers.as<int>(), &info);
        else
            fortran(gesdd, job, &m, &n, a, &lda, s, u, &lda, vt, &ldvt, work, &size, integers.as<int>(),
                    &info);
    };
    E answer = 0;
    call(&answer);
    if (info) return info;
    size = workspace(answer);
    const Scratch work(size * int64_t(sizeof(E)));
    call(work.as<E>());
    return info;
}

/// By columns the matrix is Aᵀ = conj(V) S Uᵀ: what LAPACK calls U is Vᴴ by rows, and its Vᵀ is U by rows.
void svd_kernel(Call& call) {
    const T a = copy(call.in[0]);
    const int m = rows_of(*a), n = columns_of(*a), k = std::min(m, n);
    Tensor &u = *call.out[0], &s = *call.out[1], &vh = *call.out[2];
    const int64_t u_size = int64_t(m) * columns_of(u), vh_size = int64_t(n) * rows_of(vh);
    Failure failure;
    visit_lapack(a->dtype(), [&]<typename E>(Tag<E>) {
        failure = each_matrix(matrices_of(*a), 20 * cube(call), [&](int64_t i) {
            E* const u_i = u.data<E>() + i * u_size;
            E* const vh_i = vh.data<E>() + i * vh_size;
            if (k == 0) {
                if (u_size) identity(u_i, m);
                if (vh_size) identity(vh_i, n);
                return 0;
            }
            return decompose_svd(call.params.flag ? "A" : "S", a->data<E>() + i * m * n, n, m,
                                 s.data<Real<E>>() + i * k, vh_i, u_i);
        });
    });
    raise_not_converged(call, failure);
}

void svdvals_kernel(Call& call) {
    const T a = copy(call.in[0]);
    const int m = rows_of(*a), n = columns_of(*a), k = std::min(m, n);
    Failure failure;
    visit_lapack(a->dtype(), [&]<typename E>(Tag<E>) {
        failure = each_matrix(k ? matrices_of(*a) : 0, 4 * cube(call), [&](int64_t i) {
            E unused = 0;
            return decompose_svd("N", a->data<E>() + i * m * n, n, m, call.out[0]->data<Real<E>>() + i * k,
                                 &unused, &unused);
        });
    });
    raise_not_converged(call, failure);
}

/// The part of the gradient between U and Vᴴ.
T svd_core(Backward& c, const T& u, const T& s, const T& vh, const T& gu, const T& gvh) {
    const bool is_complex = is(u->dtype(), complexes);
    const T of_u = skew(matmul(adjoint(u), gu)), of_v = skew(matmul(vh, adjoint(gvh)));
    T core = (of_u * as_row(s) + as_column(s) * of_v) / gaps(square(s));
    // The phases of U and V are free, but a function that does not depend on them may still lead through
    // both.
    if (is_complex) core = core - diagonal_part(core) + diagonal_part(of_u) / as_row(s * 2);
    if (c.has_grad(1)) core = core + diagonal_matrix(c.grad(1));
    return core;
}

T svd_gradient(Backward& c) {
    const bool square = c.shape()[c.shape().size() - 2] == c.shape().back();
    if (c.params().flag && !square) {
        if (c.has_grad(0) || c.has_grad(2))
            fail(Kind::runtime,
                 "backward of 'svd': with full_matrices=True the last singular vectors are not determined by "
                 "a "
                 "matrix of shape ",
                 c.shape().words(), ", so they have no gradient; use full_matrices=False");
        const auto thin = svd(c.input(), false);
        return matmul(thin[0] * as_row(c.grad(1)), thin[2]);
    }
    const T s = c.output(1), u = c.output(0), vh = c.output(2);
    const int64_t m = c.shape()[c.shape().size() - 2], n = c.shape().back(), k = std::min(m, n);
    if (!c.has_grad(0) && !c.has_grad(2)) return matmul(u * as_row(c.grad(1)), vh);
    const T gu = c.grad(0), gvh = c.grad(2);
    T result = matmul(matmul(u, svd_core(c, u, s, vh, gu, gvh)), vh);
    if (m > k) {
        const T scaled = gu / as_row(s);
        result = result + matmul(scaled - matmul(u, matmul(adjoint(u), scaled)), vh);
    }
    if (n > k) {
        const T scaled = gvh / as_column(s);
        result = result + matmul(u, scaled - matmul(matmul(scaled, adjoint(vh)), vh));
    }
    return result;
}

/// flag: full matrices.
const Op& svd_op = enter({.name = "svd",
                          .family = Family::linalg,
                          .arity = 1,
                          .outputs = 3,
                          .types = lapack_types,
                          .rule =
                              [](Call& call) {
                                  const Tensor& x = call.input();
                                  check_matrix("svd", x);
                                  const Dims batch = batch_of(x.shape());
                                  const int64_t m = rows_of(x), n = columns_of(x), k = std::min(m, n);
                                  call.make(with_axes(batch, {m, call.params.flag ? m : k}), x.dtype(), 0);
                                  call.make(with_axes(batch, {k}), real_of(x.dtype()), 1);
                                  call.make(with_axes(batch, {call.params.flag ? n : k, n}), x.dtype(), 2);
                              },
                          .cpu = svd_kernel,
                          .vjp = [](Backward& c) { c.give(0, [&] { return svd_gradient(c); }); },
                          .saves = in0 | out0 | out1 | out2,
                          .cost = cubic<60>});

const Op& svdvals_op =
    enter({.name = "svdvals",
           .family = Family::linalg,
           .arity = 1,
           .types = lapack_types,
           .rule =
               [](Call& call) {
                   const Tensor& x = call.input();
                   check_matrix("svdvals", x);
                   call.make(with_axes(batch_of(x.shape()), {std::min(rows_of(x), columns_of(x))}),
                             real_of(x.dtype()));
               },
           .cpu = svdvals_kernel,
           .vjp =
               [](Backward& c) {
                   c.give(0, [&] {
                       const auto all = svd(c.input(), false);
                       return matmul(all[0] * as_row(c.grad()), all[2]);
                   });
               },
           .saves = in0,
           .cost = cubic<12>});

// --- eigh ------------------------------------------------------------------------------------------------

/// Eigenvalues, and with job "V" eigenvectors in place of the matrix, both by columns of the transpose.
template <typename E>
int decompose_eigh(const char* job, E* a, int n, Real<E>* values) {
    static void* const syevd = routine<E>(is_complex<E> ? "heevd" : "syevd");
    const int lda = leading(n);
    int size = -1, real_size = -1, integer_size = -1, info = 0, integer_answer = 0;
    const auto call = [&](E* work, Real<E>* real_work, int* integers) {
        if constexpr (is_complex<E>)
            fortran(syevd, job, "U", &n, a, &lda, values, work, &size, real_work, &real_size, integers,
                    &integer_size, &info);
        else
            fortran(syevd, job, "U", &n, a, &lda, values, work, &size, integers, &integer_size, &info);
    };
    E answer = 0;
    Real<E> real_answer = 0;
    call(&answer, &real_answer, &integer_answer);
    if (info) return info;
    size = workspace(answer);
    real_size = workspace(real_answer);
    integer_size = integer_answer;
    const Scratch work(size * int64_t(sizeof(E))), real_work(real_size * int64_t(sizeof(Real<E>))),
        integers(integer_size * int64_t(sizeof(int)));
    call(work.as<E>(), real_work.as<Real<E>>(), integers.as<int>());
    return info;
}

/// By columns the matrix is conj(A), its eigenvectors are the conjugates: a becomes aᴴ in place.
template <typename E>
void adjoint_in_place(E* a, int64_t n) {
    const auto conjugated = [](E x) {
        if constexpr (is_complex<E>)
            return std::conj(x);
        else
            return x;
    };
    for (int64_t i = 0; i < n; ++i) {
        a[i * n + i] = conjugated(a[i * n + i]);
        for (int64_t j = 0; j < i; ++j) {
            const E kept = conjugated(a[i * n + j]);
            a[i * n + j] = conjugated(a[j * n + i]);
            a[j * n + i] = kept;
        }
    }
}

void eigen_kernel(Call& call, const Tensor& values, const Tensor& vectors, bool wanted) {
    const int n = columns_of(call.input());
    Failure failure;
    visit_lapack(vectors.dtype(), [&]<typename E>(Tag<E>) {
        failure = each_matrix(n ? matrices_of(vectors) : 0, (wanted ? 9 : 2) * cube(call), [&](int64_t i) {
            E* const a = vectors.data<E>() + i * n * n;
            const int code = decompose_eigh(wanted ? "V" : "N", a, n, values.data<Real<E>>() + i * n);
            if (wanted) adjoint_in_place(a, n);
            return code;
        });
    });
    raise_not_converged(call, failure);
}

/// V (diag(g values) + (Vᴴ g vectors) / E) Vᴴ with E[i, j] = value j - value i; of it the Hermitian part,
/// since the matrix has no other.
T eigh_gradient(Backward& c) {
    const T values = c.output(0), v = c.output(1), g = c.grad(0);
    if (!c.has_grad(1)) return matmul(v * as_row(g), adjoint(v));
    const T turned = matmul(adjoint(v), c.grad(1)) / gaps(values);
    const T core = hermitian(turned - diagonal_part(turned)) + diagonal_matrix(g);
    return matmul(matmul(v, core), adjoint(v));
}

const Op& eigh_op =
    enter({.name = "eigh",
           .family = Family::linalg,
           .arity = 1,
           .outputs = 2,
           .types = lapack_types,
           .rule =
               [](Call& call) {
                   const Tensor& x = call.input();
                   check_square("eigh", x);
                   call.make(with_axes(batch_of(x.shape()), {columns_of(x)}), real_of(x.dtype()), 0);
                   call.make(x.shape(), x.dtype(), 1);
               },
           .cpu =
               [](Call& call) {
                   copy_elements(call.input(), *call.out[1]);
                   eigen_kernel(call, *call.out[0], *call.out[1], true);
               },
           .vjp = [](Backward& c) { c.give(0, [&] { return eigh_gradient(c); }); },
           .saves = out0 | out1,
           .cost = cubic<27>});

const Op& eigvalsh_op =
    enter({.name = "eigvalsh",
           .family = Family::linalg,
           .arity = 1,
           .types = lapack_types,
           .rule =
               [](Call& call) {
                   const Tensor& x = call.input();
                   check_square("eigvalsh", x);
                   call.make(with_axes(batch_of(x.shape()), {columns_of(x)}), real_of(x.dtype()));
               },
           .cpu = [](Call& call) { eigen_kernel(call, *call.out[0], *copy(call.in[0]), false); },
           .vjp =
               [](Backward& c) {
                   c.give(0, [&] {
                       const T v = eigh(c.input())[1];
                       return matmul(v * as_row(c.grad()), adjoint(v));
                   });
               },
           .saves = in0,
           .cost = cubic<4>});

Params flagged(bool flag) {
    Params params;
    params.flag = flag;
    return params;
}

/// The tensor with this batch before its matrices.
T with_batch(const T& x, const Dims& batch) {
    return expand(x, with_axes(batch, {rows_of(*x), columns_of(*x)}));
}

/// Runs an operation on both, their batches broadcast.
T run_solver(const Op& op, const Params& params, const T& a, const T& b) {
    check_matrix(op.name, *a);
    check_matrix(op.name, *b);
    const Dims batch = broadcast(batch_of(a->shape()), batch_of(b->shape()), op.name);
    return run(op, params, with_batch(a, batch), with_batch(b, batch));
}

std::array<T, 3> run_all(const Op& op, const Params& params, const T& x) {
    const T inputs[] = {x};
    return apply_all(op, inputs, params);
}

}  // namespace

T cholesky(const T& x) { return run(cholesky_op, no_params, x); }
T solve(const T& a, const T& b) { return run_solver(solve_op, no_params, a, b); }
T solve_triangular(const T& a, const T& b, bool upper) {
    return run_solver(solve_triangular_op, flagged(upper), a, b);
}
T inv(const T& x) { return run(inv_op, no_params, x); }
T det(const T& x) { return run(det_op, no_params, x); }
std::array<T, 3> slogdet(const T& x) { return run_all(slogdet_op, no_params, x); }
std::array<T, 3> qr(const T& x, bool complete) { return run_all(qr_op, flagged(complete), x); }
std::array<T, 3> svd(const T& x, bool full) { return run_all(svd_op, flagged(full), x); }
T svdvals(const T& x) { return run(svdvals_op, no_params, x); }
std::array<T, 3> eigh(const T& x) { return run_all(eigh_op, no_params, x); }
T eigvalsh(const T& x) { return run(eigvalsh_op, no_params, x); }

}  // namespace accelera::tensora
