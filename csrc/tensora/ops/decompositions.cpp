// Entries of the decompositions of matrices (QR, singular values, eigenvalues), on the LAPACK that OpenBLAS
// brings.
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

namespace {

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
        each_matrix(call, matrices_of(*a), 4 * cube(call), [&](int64_t i) {
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
                       fail(Kind::runtime, "[backward of 'qr'] with mode='complete' the last ", m - n,
                            " columns of Q are not determined by a matrix of shape ", c.shape().words(),
                            ", so they have no gradient; use mode='reduced'");
                   c.give(0, [&] {
                       return (m < n ? wide_qr_gradient : qr_gradient)(c.output(0), c.output(1), c.grad(0),
                                                                       c.grad(1));
                   });
               },
           .saves = out0 | out1,
           .autocast = Precision::single,
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
        failure = each_matrix(call, matrices_of(*a), 20 * cube(call), [&](int64_t i) {
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
        failure = each_matrix(call, k ? matrices_of(*a) : 0, 4 * cube(call), [&](int64_t i) {
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

/// Whether nothing but zeros is in it.
bool vanishes(const T& x) {
    if (Capture::here()) Capture::here()->refuse_read(*x, "the gradient of a decomposition");
    const GradMode off(false);
    const T elements = contiguous(to_device(equal(x, like(x, 0)), cpu));
    const bool* const zero = elements->data<bool>();
    return std::all_of(zero, zero + elements->size(), [](bool each) { return each; });
}

T svd_gradient(Backward& c) {
    if (c.shape().product() == 0) return zeros(c.shape(), c.dtype());
    const int64_t m = c.shape()[c.shape().size() - 2], n = c.shape().back(), k = std::min(m, n);
    const T s = c.output(1), u = narrowed(c.output(0), -1, 0, k), vh = narrowed(c.output(2), -2, 0, k);
    if (!c.has_grad(0) && !c.has_grad(2)) return matmul(u * as_row(c.grad(1)), vh);
    if (c.params().flag && m != n &&
        !(vanishes(narrowed(c.grad(0), -1, k, m - k)) && vanishes(narrowed(c.grad(2), -2, k, n - k))))
        fail(Kind::runtime,
             "[backward of 'svd'] with full_matrices=True the last singular vectors are not determined by a "
             "matrix of shape ",
             c.shape().words(), ", so they have no gradient; use full_matrices=False");
    const T gu = narrowed(c.grad(0), -1, 0, k), gvh = narrowed(c.grad(2), -2, 0, k);
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
                          .autocast = Precision::single,
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
           .autocast = Precision::single,
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
        failure =
            each_matrix(call, n ? matrices_of(vectors) : 0, (wanted ? 9 : 2) * cube(call), [&](int64_t i) {
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
           .autocast = Precision::single,
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
           .autocast = Precision::single,
           .cost = cubic<4>});

// --- eig -------------------------------------------------------------------------------------------------

/// Eigenvalues, and eigenvectors by columns, of a matrix by columns.
template <typename E>
int decompose_eig(E* a, int n, std::complex<Real<E>>* values, std::complex<Real<E>>* vectors) {
    using R = Real<E>;
    static void* const geev = routine<E>("geev");
    const int lda = leading(n), one = 1;
    int size = -1, info = 0;
    const Scratch parts(2 * int64_t(lda) * int64_t(sizeof(R))),
        found(int64_t(lda) * lda * int64_t(sizeof(E)));
    R *const reals = parts.as<R>(), *const imags = reals + n;
    E* const columns = found.as<E>();
    const auto call = [&](E* work) {
        if constexpr (is_complex<E>)
            fortran(geev, "N", "V", &n, a, &lda, values, columns, &one, columns, &lda, work, &size, reals,
                    &info);
        else
            fortran(geev, "N", "V", &n, a, &lda, reals, imags, columns, &one, columns, &lda, work, &size,
                    &info);
    };
    E answer = 0;
    call(&answer);
    if (info) return info;
    size = workspace(answer);
    const Scratch work(size * int64_t(sizeof(E)));
    InterruptibleBlas::clear_when_given_up(a, int64_t(n) * n * int64_t(sizeof(E)));
    call(work.as<E>());
    if constexpr (is_complex<E>) {
        std::copy_n(columns, int64_t(n) * n, vectors);
    } else {
        // A pair of conjugate eigenvectors stands as its real and its imaginary part.
        for (int64_t j = 0; j < n; ++j) {
            values[j] = {reals[j], imags[j]};
            const int64_t first = imags[j] < 0 ? j - 1 : j;
            for (int64_t i = 0; i < n; ++i) {
                const R part = imags[j] == 0 ? R(0) : columns[(first + 1) * n + i];
                vectors[j * n + i] = {columns[first * n + i], imags[j] < 0 ? -part : part};
            }
        }
    }
    return info;
}

void eig_kernel(Call& call) {
    const T a = copy(mt(call.in[0]));
    const int n = columns_of(*a);
    const T vectors = Tensor::empty(a->shape(), call.out[1]->dtype());
    Failure failure;
    visit_lapack(a->dtype(), [&]<typename E>(Tag<E>) {
        using Z = std::complex<Real<E>>;
        failure = each_matrix(call, n ? matrices_of(*a) : 0, 25 * cube(call), [&](int64_t i) {
            return decompose_eig(a->data<E>() + i * n * n, n, call.out[0]->data<Z>() + i * n,
                                 vectors->data<Z>() + i * n * n);
        });
    });
    raise_not_converged(call, failure);
    copy_elements(*mt(vectors), *call.out[1]);
}

/// V⁻ᴴ (diag(g values) + (Vᴴ g vectors - VᴴV Re(diag(Vᴴ g vectors))) / conj(E)) Vᴴ, where eigenvectors have
/// length 1 and E[i, j] = value j - value i.
T eig_gradient(Backward& c) {
    const T values = c.output(0), v = c.output(1);
    T core = diagonal_matrix(c.grad(0));
    if (c.has_grad(1)) {
        const T turned = matmul(adjoint(v), c.grad(1));
        const T own = cast(real(diagonal_part(turned)), turned->dtype());
        const T across = turned - matmul(matmul(adjoint(v), v), own);
        core = core + (across - diagonal_part(across)) / conj(gaps(values));
    }
    const T result = solve(adjoint(v), matmul(core, adjoint(v)));
    return is(c.dtype(), complexes) ? result : real(result);
}

const Op& eig_op = enter({.name = "eig",
                          .family = Family::linalg,
                          .arity = 1,
                          .outputs = 2,
                          .types = lapack_types,
                          .rule =
                              [](Call& call) {
                                  const Tensor& x = call.input();
                                  check_square("eig", x);
                                  const DType dtype = promote(x.dtype(), DType::c64);
                                  call.make(with_axes(batch_of(x.shape()), {columns_of(x)}), dtype, 0);
                                  call.make(x.shape(), dtype, 1);
                              },
                          .cpu = eig_kernel,
                          .vjp = [](Backward& c) { c.give(0, [&] { return eig_gradient(c); }); },
                          .saves = out0 | out1,
                          .autocast = Precision::single,
                          .cost = cubic<75>});

}  // namespace

std::array<T, 3> qr(const T& x, bool complete) { return run_all(qr_op, flagged(complete), x); }
std::array<T, 3> svd(const T& x, bool full) { return run_all(svd_op, flagged(full), x); }
T svdvals(const T& x) { return run(svdvals_op, no_params, x); }
std::array<T, 3> eigh(const T& x) { return run_all(eigh_op, no_params, x); }
T eigvalsh(const T& x) { return run(eigvalsh_op, no_params, x); }
std::array<T, 3> eig(const T& x) { return run_all(eig_op, no_params, x); }

}  // namespace accelera::tensora
