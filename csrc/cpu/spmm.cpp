#include "cpu/spmm.h"

#include <algorithm>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "common/parallel.h"

namespace accelera::cpu {
namespace {

constexpr int64_t columns_per_task = 64;
constexpr int64_t lines_per_task = 128;
constexpr int64_t columns_at_once =
    8;  // where c lies column by column: so many of b and of c stay in the cache

/// One product. Work is shared so that no two threads write to the same place: rows of c where rows are
/// compressed and c lies row by row, else columns of c.
template <class Item, class Index>
class Product {
  public:
    Product(const SparseBlock& s, const MatrixView& b, const MatrixView& c)
        : s_(s),
          b_(b),
          c_(c),
          pointers_(static_cast<const Index*>(s.pointers)),
          indices_(static_cast<const Index*>(s.indices)),
          values_(static_cast<const Item*>(s.values)) {}

    void run(bool accumulate, int threads) const {
        const bool row_by_row = distance(c_.col_stride) <= distance(c_.row_stride);
        const bool by_lines = s_.by_rows && row_by_row;
        const int64_t size = by_lines ? c_.rows : c_.cols,
                      step = by_lines ? lines_per_task : columns_per_task;
        const int64_t tasks = (size + step - 1) / step;
        if (tasks == 0) return;
        parallel_for(static_cast<int>(std::min<int64_t>(threads, tasks)), tasks, [&](int, int64_t task) {
            const int64_t begin = task * step, end = std::min(size, begin + step);
            const Range rows = by_lines ? Range{begin, end} : Range{0, c_.rows};
            const Range cols = by_lines ? Range{0, c_.cols} : Range{begin, end};
            if (!accumulate) clear(rows, cols);
            if (row_by_row)
                add(rows, cols);
            else
                for (int64_t col = cols.begin; col < cols.end; col += columns_at_once)
                    add(rows, {col, std::min(cols.end, col + columns_at_once)});
        });
    }

  private:
    struct Range {
        int64_t begin, end;
    };

    static int64_t distance(int64_t stride) { return stride < 0 ? -stride : stride; }

    Item* at(const MatrixView& x, int64_t row, int64_t col) const {
        return static_cast<Item*>(x.data) + row * x.row_stride + col * x.col_stride;
    }

    void clear(Range rows, Range cols) const {
        for (int64_t row = rows.begin; row < rows.end; ++row)
            for (int64_t col = cols.begin; col < cols.end; ++col) *at(c_, row, col) = Item{};
    }

    /// Add to c what the entries of the block contribute to `rows` and `cols` of it.
    void add(Range rows, Range cols) const {
        const int64_t first = s_.by_rows ? s_.row_begin + rows.begin : s_.col_begin;
        const int64_t last = s_.by_rows ? s_.row_begin + rows.end : s_.col_end;
        const int64_t low = s_.by_rows ? s_.col_begin : s_.row_begin;
        const int64_t high = s_.by_rows ? s_.col_end : s_.row_end;
        for (int64_t line = first; line < last; ++line) {
            const Index *entry = indices_ + pointers_[line], *const end = indices_ + pointers_[line + 1];
            if (s_.sorted) entry = std::lower_bound(entry, end, static_cast<Index>(low));
            for (; entry < end; ++entry) {
                const int64_t other = *entry;
                if (other >= high && s_.sorted) break;
                if (other < low || other >= high) continue;
                const int64_t row = (s_.by_rows ? line : other) - s_.row_begin;
                const int64_t inner = (s_.by_rows ? other : line) - s_.col_begin;
                axpy(values_[entry - indices_], inner, row, cols);
            }
        }
    }

    /// c[row, cols] += value * b[inner, cols]
    void axpy(Item value, int64_t inner, int64_t row, Range cols) const {
        const Item* from = at(b_, inner, cols.begin);
        Item* to = at(c_, row, cols.begin);
        const int64_t count = cols.end - cols.begin;
        if (b_.col_stride == 1 && c_.col_stride == 1) {
            for (int64_t i = 0; i < count; ++i) to[i] = sum(to[i], value, from[i]);
        } else {
            for (int64_t i = 0; i < count; ++i, from += b_.col_stride, to += c_.col_stride)
                *to = sum(*to, value, *from);
        }
    }

    static Item sum(Item to, Item value, Item from) {
        if constexpr (std::is_integral_v<Item>) {  // wraps around, as unsigned numbers may
            using Word = std::make_unsigned_t<Item>;
            return static_cast<Item>(static_cast<Word>(to) +
                                     static_cast<Word>(value) * static_cast<Word>(from));
        } else if constexpr (std::is_floating_point_v<Item>) {
            return to + value * from;
        } else {  // without the checks for infinities that operator* of complex numbers makes
            return {to.real() + (value.real() * from.real() - value.imag() * from.imag()),
                    to.imag() + (value.real() * from.imag() + value.imag() * from.real())};
        }
    }

    const SparseBlock& s_;
    const MatrixView &b_, &c_;
    const Index *pointers_, *indices_;
    const Item* values_;
};

template <class Item>
void multiply(const SparseBlock& s, const MatrixView& b, const MatrixView& c, bool accumulate, int threads) {
    if (s.wide)
        Product<Item, int64_t>(s, b, c).run(accumulate, threads);
    else
        Product<Item, int32_t>(s, b, c).run(accumulate, threads);
}

}  // namespace

void spmm(const SparseBlock& s, const MatrixView& b, const MatrixView& c, SparseItem item, bool accumulate,
          int threads) {
    threads = threads > 0 ? threads : available_threads();
    switch (item) {
        case SparseItem::f32:
            return multiply<float>(s, b, c, accumulate, threads);
        case SparseItem::f64:
            return multiply<double>(s, b, c, accumulate, threads);
        case SparseItem::c64:
            return multiply<std::complex<float>>(s, b, c, accumulate, threads);
        case SparseItem::c128:
            return multiply<std::complex<double>>(s, b, c, accumulate, threads);
        case SparseItem::i32:
            return multiply<int32_t>(s, b, c, accumulate, threads);
        case SparseItem::i64:
            return multiply<int64_t>(s, b, c, accumulate, threads);
    }
}

}  // namespace accelera::cpu
