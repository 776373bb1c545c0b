// Entries of Cholesky, the solvers and the determinants, on the LAPACK that OpenBLAS brings.
//
// LAPACK's matrices lie by columns, Tensora's by rows: what is a matrix here is its transpose there. Where
// the transpose has the wanted decomposition too, nothing is copied into another order.
//
// Gradients: M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
// differentiation" (2008); M. Seeger et al., "Auto-differentiating linear algebra" (2017, arXiv:1710.08717);
// for complex matrices as in PyTorch's FunctionsManual: the gradient g of L(z) is such that dL = Re(conj(g)
// dz).
#include "tensora/core/autograd.h"
#include "tensora/functions.h"
#include "tensora/jit/capture.h"
#include "tensora/kernels/loops.h"
#include "tensora/ops/lapack.h"

namespace accelera::tensora {

T lower_triangle(const T& x, int64_t diagonal) {
    return where(lower_mask(x->shape()[x->dims() - 2], x->shape().back(), diagonal), x, like(x, 0));
}
T upper_triangle(const T& x, int64_t diagonal) {
    return where(lower_mask(x->shape()[x->dims() - 2], x->shape().back(), diagonal - 1), like(x, 0), x);
}

namespace {

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
        failure = each_matrix(call, matrices_of(call.input()), cube(call),
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
           .autocast = Precision::single,
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
    require_shape(rows_of(a) == rows_of(b), "[", call.op.name, "] matrices of shape ", a.shape().words(),
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
        failure = each_matrix(call, matrices_of(*a), cube(call) + double(n) * n * k, [&](int64_t i) {
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
                            .autocast = Precision::single,
                            .cost = cost_of_solving<2>});

void solve_triangular_kernel(Call& call) {
    Tensor& out = *call.out[0];
    const T a = contiguous(cast(call.in[0], out.dtype()));
    copy_elements(call.input(1), out);
    const int n = rows_of(*a), k = columns_of(out), lda = leading(n), ldb = leading(k);
    visit_lapack(out.dtype(), [&]<typename E>(Tag<E>) {
        static void* const trsm = routine<E>("trsm");
        const E one = 1;
        each_matrix(call, matrices_of(*a), double(n) * n * k, [&](int64_t i) {
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
           .autocast = Precision::single,
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
                       failure = each_matrix(call, matrices_of(call.input()), 2 * cube(call),
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
           .autocast = Precision::single,
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
        each_matrix(call, matrices_of(*work), cube(call), [&](int64_t i) {
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
        each_matrix(call, matrices_of(*work), cube(call), [&](int64_t i) {
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
    if (Capture::here()) Capture::here()->refuse_read(*x, "the gradient of a determinant");
    const GradMode off(false);
    bool found = false;
    const T zero = contiguous(to_device(equal(x, like(x, 0)), cpu));
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
                          .autocast = Precision::single,
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
           .autocast = Precision::single,
           .cost = cubic<2>});

// --- lu --------------------------------------------------------------------------------------------------

/// Factors of a matrix by columns in its place, and the permutation by rows.
template <typename E>
void decompose_lu(E* a, int m, int n, int32_t* pivots, E* permutation) {
    static void* const getrf = routine<E>("getrf");
    const int lda = leading(m);
    int info = 0;  // a zero pivot is no failure: the factors are there
    fortran(getrf, &m, &n, a, &lda, pivots, &info);
    std::vector<int64_t> order(static_cast<size_t>(m));
    for (int64_t i = 0; i < m; ++i) order[size_t(i)] = i;
    for (int64_t i = 0; i < std::min(m, n); ++i) std::swap(order[size_t(i)], order[size_t(pivots[i] - 1)]);
    for (int64_t i = 0; i < m; ++i) permutation[order[size_t(i)] * m + i] = 1;
}

void lu_kernel(Call& call) {
    const T a = copy(mt(call.in[0]));
    const int m = columns_of(*a), n = rows_of(*a), k = std::min(m, n);
    visit_lapack(a->dtype(), [&]<typename E>(Tag<E>) {
        std::fill_n(call.out[2]->data<E>(), call.out[2]->size(), E(0));
        each_matrix(call, matrices_of(*a), cube(call), [&](int64_t i) {
            decompose_lu(a->data<E>() + i * m * n, m, n, call.out[1]->data<int32_t>() + i * k,
                         call.out[2]->data<E>() + i * m * m);
            return 0;
        });
    });
    copy_elements(*mt(a), *call.out[0]);
}

/// Of A = P L U with square L and U, for gradients of L (below its diagonal) and U.
T lu_gradient(const T& p, const T& l, const T& u, const T& gl, const T& gu) {
    const T core = lower_triangle(matmul(adjoint(l), gl), -1) + upper_triangle(matmul(gu, adjoint(u)), 0);
    const T left = solve_triangular(adjoint(l), core, true);
    return matmul(p, adjoint(solve_triangular(u, adjoint(left), true)));
}

/// Of the part of A that is square, and of the rest: U2 = L⁻¹ A2 where A is wide, L2 = A2 U⁻¹ where it is
/// high.
T lu_gradient_of(Backward& c) {
    const T lu = c.output(0), g = c.grad(0);
    const T p = c.output(2);
    const int64_t m = lu->shape()[lu->dims() - 2], n = lu->shape().back(), k = std::min(m, n);
    const T square = narrowed(narrowed(lu, -2, 0, k), -1, 0, k);
    const T one = diagonal_matrix(ones({k}, lu->dtype()));
    const T l = lower_triangle(square, -1) + one, u = upper_triangle(square, 0);
    const T g_square = narrowed(narrowed(g, -2, 0, k), -1, 0, k);
    T gl = lower_triangle(g_square, -1), gu = upper_triangle(g_square, 0);
    if (m == n) return lu_gradient(p, l, u, gl, gu);
    if (m < n) {
        const T u2 = narrowed(lu, -1, k, n - k);
        const T g2 = solve_triangular(adjoint(l), narrowed(g, -1, k, n - k), true);
        gl = lower_triangle(gl - matmul(g2, adjoint(u2)), -1);
        return concat({lu_gradient(p, l, u, gl, gu), matmul(p, g2)}, -1);
    }
    const T l2 = narrowed(lu, -2, k, m - k);
    const T g2 = adjoint(solve_triangular(u, adjoint(narrowed(g, -2, k, m - k)), true));
    gu = upper_triangle(gu - matmul(adjoint(l2), g2), 0);
    return matmul(p, concat({lu_gradient(one, l, u, gl, gu), g2}, -2));
}

const Op& lu_factor_op =
    enter({.name = "lu_factor",
           .family = Family::linalg,
           .arity = 1,
           .outputs = 3,
           .types = lapack_types,
           .rule =
               [](Call& call) {
                   const Tensor& x = call.input();
                   check_matrix("lu_factor", x);
                   const Dims batch = batch_of(x.shape());
                   call.make(x.shape(), x.dtype(), 0);
                   call.make(with_axes(batch, {std::min(rows_of(x), columns_of(x))}), DType::i32, 1);
                   call.make(with_axes(batch, {rows_of(x), rows_of(x)}), x.dtype(), 2);
               },
           .cpu = lu_kernel,
           .vjp = [](Backward& c) { c.give(0, [&] { return lu_gradient_of(c); }); },
           .saves = out0 | out2,
           .autocast = Precision::single,
           .cost = cubic<2>});

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

}  // namespace

T cholesky(const T& x) { return run(cholesky_op, no_params, x); }
T solve(const T& a, const T& b) { return run_solver(solve_op, no_params, a, b); }
T solve_triangular(const T& a, const T& b, bool upper) {
    return run_solver(solve_triangular_op, flagged(upper), a, b);
}
T inv(const T& x) { return run(inv_op, no_params, x); }
T det(const T& x) { return run(det_op, no_params, x); }
std::array<T, 3> slogdet(const T& x) { return run_all(slogdet_op, no_params, x); }
std::array<T, 3> lu_factor(const T& x) { return run_all(lu_factor_op, no_params, x); }

}  // namespace accelera::tensora
