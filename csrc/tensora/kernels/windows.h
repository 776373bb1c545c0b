#pragma once

#include <cstdint>

namespace accelera::tensora {

/// c = a b, or c += a b, for matrices whose rows may lie anywhere: a patch of an image is a row that begins
/// elsewhere in it, and need not be copied.
template <typename E>
struct Product {
    int64_t rows, columns, depth;
    const E* a;
    const int64_t* a_at;  ///< a[i, k] is a[a_at[i] + k * a_step]
    int64_t a_step;
    const E* b;
    const int64_t* b_at;  ///< b[k, j] is b[b_at[k] + j]
    E* c;
    int64_t c_row;  ///< c[i, j] is c[i * c_row + j]
    bool add;
};

/// Scores of one query with the keys of a block, still to be multiplied with `factor`.
template <typename E>
struct ScoreRow {
    E* scores;
    E factor;
    int64_t n;       ///< keys that the query sees
    int64_t padded;  ///< scores behind them become weights of 0
    const E* mask;   ///< added to the scores; may be null
    int64_t mask_step;
};

/// Loops of convolution and attention for the instruction set of this machine.
template <typename E>
struct WindowLoops {
    /// Columns are read and written in multiples of this.
    int64_t lanes;
    void (*multiply)(const Product<E>& product);
    /// Scores become weights e^(score - most), where `most` is the largest so far; `total` is the sum of all
    /// weights so far. The factor that earlier weights shrink by.
    E (*soften)(const ScoreRow<E>& row, E& most, E& total);
    /// Scores become weights e^(score - log_sum), and slopes[j] = weight * (slopes[j] - mean).
    void (*weigh)(const ScoreRow<E>& row, E log_sum, E mean, E* slopes);
    /// to[i] = from[i] * factor; both may be the same
    void (*scale)(int64_t n, const E* from, E factor, E* to);
    /// to[j * to_row + i] = from[i * from_row + j] for i below `rows` and j below `columns`
    void (*turn)(int64_t rows, int64_t columns, const E* from, int64_t from_row, E* to, int64_t to_row);
};

template <typename E>
const WindowLoops<E>& window_loops();

}  // namespace accelera::tensora
