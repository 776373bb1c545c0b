// Blocked integer matrix product.
//
// C is cut into blocks, one task each. A task walks k in slices, packs its slice of A and of B into strips
// that the micro-kernel reads in order, and multiplies strip by strip: a strip of A is a few rows, a strip of
// B one or two vector registers of columns, both padded with zeros, and the product of two strips stays in
// registers.
#include "cpu/igemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "common/multiversion.h"
#include "common/parallel.h"

namespace accelera::cpu {
namespace {

constexpr int64_t max_block_rows = 144;
constexpr int64_t max_block_cols = 512;
constexpr int64_t max_block_depth = 256;
constexpr int64_t strip_bytes = 64;
constexpr int64_t alignment = 64;
constexpr int64_t products_per_thread = 1 << 18;

// Bytes are multiplied in 16-bit lanes: vector units do not multiply bytes, and the low half is the same.
template <class Item>
struct LaneOf {
    using type = Item;
};
template <>
struct LaneOf<uint8_t> {
    using type = uint16_t;
};

template <class Lane>
constexpr int64_t strip_cols = strip_bytes / static_cast<int64_t>(sizeof(Lane));
template <class Lane>
constexpr int64_t strip_rows = sizeof(Lane) == 8 ? 4 : 6;

// C promotes 16-bit factors to signed int, whose overflow is undefined: multiply as unsigned.
template <class Lane>
ACCELERA_INLINE Lane product(Lane x, Lane y) {
    using Wide = std::common_type_t<Lane, unsigned>;
    return static_cast<Lane>(static_cast<Wide>(x) * static_cast<Wide>(y));
}

template <class Lane>
ACCELERA_INLINE void multiply_strips(const Lane* __restrict a, const Lane* __restrict b, int64_t depth,
                                     Lane* __restrict out) {
    constexpr int64_t rows = strip_rows<Lane>, cols = strip_cols<Lane>;
    Lane sum[rows][cols] = {};
    for (int64_t p = 0; p < depth; ++p, a += rows, b += cols)
#pragma GCC unroll 8
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < cols; ++j) sum[i][j] += product<Lane>(a[i], b[j]);
    std::memcpy(out, sum, sizeof(sum));
}

ACCELERA_MULTIVERSION void kernel(const uint16_t* a, const uint16_t* b, int64_t depth, uint16_t* out) {
    multiply_strips(a, b, depth, out);
}
ACCELERA_MULTIVERSION void kernel(const uint32_t* a, const uint32_t* b, int64_t depth, uint32_t* out) {
    multiply_strips(a, b, depth, out);
}
ACCELERA_MULTIVERSION void kernel(const uint64_t* a, const uint64_t* b, int64_t depth, uint64_t* out) {
    multiply_strips(a, b, depth, out);
}

int64_t ceil_div(int64_t value, int64_t step) { return (value + step - 1) / step; }
int64_t round_up(int64_t value, int64_t step) { return ceil_div(value, step) * step; }

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer allocate(int64_t bytes) {
    void* memory = std::aligned_alloc(alignment, static_cast<size_t>(bytes));
    if (memory == nullptr) throw std::bad_alloc();
    return Buffer(static_cast<char*>(memory));
}

// Copies `outer` runs of `inner` items, given the strides of both sides.
template <class Item, class Lane>
ACCELERA_INLINE void pack_strip(const Item* source, int64_t inner_stride, int64_t outer_stride, int64_t inner,
                                int64_t outer, Lane* target, int64_t inner_step, int64_t outer_step) {
    for (int64_t i = 0; i < outer; ++i)
        for (int64_t j = 0; j < inner; ++j)
            target[i * outer_step + j * inner_step] = source[i * outer_stride + j * inner_stride];
}

// Packs `extent` lines of `depth` items into strips of `width` lines that lie side by side at each depth,
// reading along whichever axis has its items closer together.
template <int64_t width, class Item, class Lane>
void pack(const Item* source, int64_t line_stride, int64_t depth_stride, int64_t extent, int64_t depth,
          Lane* target) {
    const bool along_depth = std::abs(depth_stride) < std::abs(line_stride);
    for (; extent > 0; extent -= width, source += width * line_stride, target += width * depth) {
        const int64_t lines = std::min(width, extent);
        if (lines < width) std::fill(target, target + width * depth, Lane{0});
        if (along_depth)
            pack_strip(source, depth_stride, line_stride, depth, lines, target, width, 1);
        else if (lines == width && line_stride == 1)
            pack_strip(source, 1, depth_stride, width, depth, target, 1, width);
        else
            pack_strip(source, line_stride, depth_stride, lines, depth, target, 1, width);
    }
}

template <class Item>
class Product {
    using Lane = typename LaneOf<Item>::type;

  public:
    Product(const MatrixView& a, const MatrixView& b, const MatrixView& c, bool accumulate)
        : a_(a), b_(b), c_(c), accumulate_(accumulate) {}

    void run(int64_t threads) {
        threads = std::clamp<int64_t>(c_.rows * c_.cols * a_.cols / products_per_thread, 1, threads);
        choose_blocks(threads);
        const int64_t down = ceil_div(c_.rows, rows_), across = ceil_div(c_.cols, cols_);
        threads = std::min(threads, down * across);
        const Buffer buffer = allocate(threads * bytes_per_thread());
        parallel_for(static_cast<int>(threads), down * across, [&](int worker, int64_t task) {
            char* packed = buffer.get() + worker * bytes_per_thread();
            block(task % down * rows_, task / down * cols_, packed);
        });
    }

    void choose_blocks(int64_t threads) {
        rows_ = std::min(max_block_rows, round_up(c_.rows, strip_rows<Lane>));
        cols_ = std::min(max_block_cols, round_up(c_.cols, strip_cols<Lane>));
        depth_ = std::min(max_block_depth, a_.cols);
        const int64_t across = ceil_div(c_.cols, cols_);
        if (ceil_div(c_.rows, rows_) * across < threads)  // too few tasks for everyone: make them smaller
            rows_ = std::min(rows_, round_up(ceil_div(c_.rows * across, threads), strip_rows<Lane>));
    }

    int64_t bytes_per_thread() const { return a_bytes() + b_bytes(); }

  private:
    int64_t a_bytes() const { return round_up(rows_ * depth_ * sizeof(Lane), alignment); }
    int64_t b_bytes() const { return round_up(cols_ * depth_ * sizeof(Lane), alignment); }

    static Item* at(const MatrixView& x, int64_t row, int64_t col) {
        return static_cast<Item*>(x.data) + row * x.row_stride + col * x.col_stride;
    }

    void block(int64_t row, int64_t col, char* packed) const {
        Lane* packed_a = reinterpret_cast<Lane*>(packed);
        Lane* packed_b = reinterpret_cast<Lane*>(packed + a_bytes());
        const int64_t rows = std::min(rows_, c_.rows - row), cols = std::min(cols_, c_.cols - col);
        for (int64_t p = 0; p < a_.cols; p += depth_) {
            const int64_t depth = std::min(depth_, a_.cols - p);
            pack<strip_rows<Lane>>(at(a_, row, p), a_.row_stride, a_.col_stride, rows, depth, packed_a);
            pack<strip_cols<Lane>>(at(b_, p, col), b_.col_stride, b_.row_stride, cols, depth, packed_b);
            const MatrixView target = {at(c_, row, col), rows, cols, c_.row_stride, c_.col_stride};
            multiply(packed_a, packed_b, depth, target, accumulate_ || p > 0);
        }
    }

    static void multiply(const Lane* packed_a, const Lane* packed_b, int64_t depth, const MatrixView& target,
                         bool add) {
        alignas(alignment) Lane tile[strip_rows<Lane> * strip_cols<Lane>];
        for (int64_t j = 0; j < target.cols; j += strip_cols<Lane>)
            for (int64_t i = 0; i < target.rows; i += strip_rows<Lane>) {
                kernel(packed_a + i * depth, packed_b + j * depth, depth, tile);
                store(tile, target, i, j, add);
            }
    }

    static void store(const Lane* tile, const MatrixView& target, int64_t row, int64_t col, bool add) {
        const int64_t rows = std::min(strip_rows<Lane>, target.rows - row);
        const int64_t cols = std::min(strip_cols<Lane>, target.cols - col);
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < cols; ++j) {
                Item* item = at(target, row + i, col + j);
                *item = static_cast<Item>((add ? *item : Item{0}) + tile[i * strip_cols<Lane> + j]);
            }
    }

    const MatrixView a_, b_, c_;
    const bool accumulate_;
    int64_t rows_ = max_block_rows, cols_ = max_block_cols, depth_ = max_block_depth;
};

template <class Item>
void multiply(const MatrixView& a, const MatrixView& b, const MatrixView& c, bool accumulate, int threads) {
    if (c.cols < strip_cols<Item> && c.cols < c.rows)  // the long side fills the strips
        Product<Item>(transposed(b), transposed(a), transposed(c), accumulate).run(threads);
    else
        Product<Item>(a, b, c, accumulate).run(threads);
}

void clear(const MatrixView& c, int64_t width) {
    for (int64_t i = 0; i < c.rows; ++i)
        for (int64_t j = 0; j < c.cols; ++j)
            std::memset(static_cast<char*>(c.data) + (i * c.row_stride + j * c.col_stride) * width, 0, width);
}

}  // namespace

void igemm(const MatrixView& a, const MatrixView& b, const MatrixView& c, int width, bool accumulate,
           int threads) {
    if (c.rows == 0 || c.cols == 0) return;
    if (a.cols == 0) return accumulate ? void() : clear(c, width);
    threads = threads > 0 ? threads : available_threads();
    switch (width) {
        case 1:
            return multiply<uint8_t>(a, b, c, accumulate, threads);
        case 2:
            return multiply<uint16_t>(a, b, c, accumulate, threads);
        case 4:
            return multiply<uint32_t>(a, b, c, accumulate, threads);
        default:
            return multiply<uint64_t>(a, b, c, accumulate, threads);
    }
}

int64_t igemm_workspace_bytes(int width, int threads) {
    const int64_t lane = std::max(width, 2);
    return (max_block_rows + max_block_cols) * max_block_depth * lane *
           (threads > 0 ? threads : available_threads());
}

}  // namespace accelera::cpu
