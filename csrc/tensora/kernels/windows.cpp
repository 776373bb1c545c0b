// Loops of convolution and attention, compiled once for each instruction set.
#include <algorithm>
#include <limits>

#include "tensora/kernels/loops.h"
#include "tensora/kernels/math.h"

namespace accelera::tensora::TENSORA_ISA {

namespace {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64, most_vectors = 4;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32, most_vectors = 2;
#else
constexpr int vector_bytes = 16, most_vectors = 2;
#endif
constexpr int most_rows = 6;

template <typename E>
constexpr int lanes = vector_bytes / int(sizeof(E));

template <typename E>
struct Vectors {
    typedef E Whole __attribute__((vector_size(vector_bytes)));
    typedef E Anywhere __attribute__((vector_size(vector_bytes), aligned(sizeof(E)), may_alias));
};

// --- products of matrices --------------------------------------------------------------------------------

/// `rows` x `vectors` of the result, which stay in registers while the depth is walked.
template <typename E, int rows, int vectors>
void tile(const Product<E>& p, int64_t row, int64_t column) {
    using Whole = typename Vectors<E>::Whole;
    using Anywhere = typename Vectors<E>::Anywhere;
    Whole sums[rows][vectors];
    const E* a[rows];
    E* const c = p.c + row * p.c_row + column;
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
        a[i] = p.a + p.a_at[row + i];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            sums[i][v] =
                p.add ? Whole(*reinterpret_cast<const Anywhere*>(c + i * p.c_row + v * lanes<E>)) : Whole{};
    }
    const E* const b = p.b + column;
    const int64_t depth = p.depth, step = p.a_step;
    const int64_t* const b_at = p.b_at;
    for (int64_t k = 0; k < depth; ++k) {
        const E* const from = b + b_at[k];
        Whole x[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) x[v] = *reinterpret_cast<const Anywhere*>(from + v * lanes<E>);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
            const E factor = a[i][k * step];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) sums[i][v] += factor * x[v];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            *reinterpret_cast<Anywhere*>(c + i * p.c_row + v * lanes<E>) = sums[i][v];
}

template <typename E, int vectors>
void tile_column(const Product<E>& p, int64_t column) {
    static constexpr void (*some[])(const Product<E>&, int64_t, int64_t) = {nullptr,
                                                                            tile<E, 1, vectors>,
                                                                            tile<E, 2, vectors>,
                                                                            tile<E, 3, vectors>,
                                                                            tile<E, 4, vectors>,
                                                                            tile<E, 5, vectors>};
    int64_t row = 0;
    for (; row + most_rows <= p.rows; row += most_rows) tile<E, most_rows, vectors>(p, row, column);
    if (row < p.rows) some[p.rows - row](p, row, column);
}

template <typename E>
void multiply(const Product<E>& p) {
    constexpr int64_t width = most_vectors * lanes<E>;
    int64_t column = 0;
    for (; column + width <= p.columns; column += width) tile_column<E, most_vectors>(p, column);
    const int64_t left = (p.columns - column + lanes<E> - 1) / lanes<E>;
    if (left == 1) tile_column<E, 1>(p, column);
    if (left == 2) tile_column<E, 2>(p, column);
    if constexpr (most_vectors == 4) {
        if (left == 3) tile_column<E, 3>(p, column);
        if (left == 4) tile_column<E, 4>(p, column);
    }
}

// --- rows of attention -----------------------------------------------------------------------------------

template <typename E>
void add_mask(const ScoreRow<E>& row) {
    E* const s = row.scores;
    if (row.mask_step == 1)
        for (int64_t j = 0; j < row.n; ++j) s[j] = s[j] * row.factor + row.mask[j];
    else
        for (int64_t j = 0; j < row.n; ++j) s[j] = s[j] * row.factor + row.mask[j * row.mask_step];
}

/// Scores are multiplied with their factor and the mask is added; the largest, NaN passed over.
template <typename E>
E finish_scores(const ScoreRow<E>& row) {
    constexpr int width = lanes<E>;
    using Int = typename Bits<E>::Int;
    if (row.mask) add_mask(row);
    const E factor = row.mask ? E(1) : row.factor, hidden = -std::numeric_limits<E>::infinity();
    E* const s = row.scores;
    E most[width];
    std::fill_n(most, width, hidden);
    for (int64_t j = 0; j < row.padded; j += width) {
        const Int seen = Int(row.n - j);
        for (Int k = 0; k < width; ++k) {
            const E score = k < seen ? s[j + k] * factor : hidden;
            s[j + k] = score;
            most[k] = score > most[k] ? score : most[k];
        }
    }
    return *std::max_element(most, most + width);
}

/// Scores become weights e^(score - shift); their sum.
template <typename E>
E exponentials(const ScoreRow<E>& row, E shift) {
    constexpr int width = lanes<E>;
    E* const s = row.scores;
    E sums[width] = {};
    for (int64_t j = 0; j < row.padded; j += width)
        for (int k = 0; k < width; ++k) {
            const E weight = exp_down(s[j + k] - shift);
            s[j + k] = weight;
            sums[k] += weight;
        }
    E total = 0;
    for (E each : sums) total += each;
    return total;
}

template <typename E>
E soften(const ScoreRow<E>& row, E& most, E& total) {
    const E before = most;
    most = std::max(before, finish_scores(row));
    const E shift = most == -std::numeric_limits<E>::infinity() ? E(0) : most;
    const E shrunk = exp_down(before - shift);
    total = total * shrunk + exponentials(row, shift);
    return shrunk;
}

template <typename E>
void weigh(const ScoreRow<E>& row, E log_sum, E mean, E* slopes) {
    finish_scores(row);
    exponentials(row, log_sum);
    const E* const weights = row.scores;
    for (int64_t j = 0; j < row.padded; ++j) slopes[j] = weights[j] * (slopes[j] - mean);
}

template <typename E>
void scale(int64_t n, const E* from, E factor, E* to) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

/// Four rows of four elements.
template <typename E>
TENSORA_INLINE void turn_four(const E* from, int64_t from_row, E* to, int64_t to_row) {
    typedef E Four __attribute__((vector_size(4 * sizeof(E)), aligned(sizeof(E)), may_alias));
    Four x[4], y[4];
    for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const Four*>(from + i * from_row);
    for (int i = 0; i < 2; ++i) {
        y[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 4, 1, 5);
        y[2 + i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; ++i) {
        const Four &low = y[2 * i], &high = y[2 * i + 1];
        *reinterpret_cast<Four*>(to + int64_t(2 * i) * to_row) =
            __builtin_shufflevector(low, high, 0, 1, 4, 5);
        *reinterpret_cast<Four*>(to + int64_t(2 * i + 1) * to_row) =
            __builtin_shufflevector(low, high, 2, 3, 6, 7);
    }
}

template <typename E>
void turn(int64_t rows, int64_t columns, const E* from, int64_t from_row, E* to, int64_t to_row) {
    const int64_t whole_rows = rows & ~int64_t(3), whole_columns = columns & ~int64_t(3);
    for (int64_t i = 0; i < whole_rows; i += 4)
        for (int64_t j = 0; j < whole_columns; j += 4)
            turn_four(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
            to[j * to_row + i] = from[i * from_row + j];
}

}  // namespace

template <typename E>
void fill_windows(WindowLoops<E>& loops) {
    loops = {lanes<E>, multiply<E>, soften<E>, weigh<E>, scale<E>, turn<E>};
}
template void fill_windows(WindowLoops<float>& loops);
template void fill_windows(WindowLoops<double>& loops);

}  // namespace accelera::tensora::TENSORA_ISA
