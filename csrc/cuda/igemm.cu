// Tiled integer matrix product: a thread block brings a slice of A and of B into shared memory and each of
// its threads keeps a 4 x 4 part of the block's 64 x 64 tile of C in registers.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "common/error.h"
#include "cuda/grid.h"
#include "cuda/igemm.h"

namespace accelera::cuda {
namespace {

constexpr int slice = 16;
constexpr int side = 16;  // threads along each side of a tile
constexpr int threads = side * side;
constexpr int per_thread = tile / side;

// Loads lines [first, first + tile) x depths [p, p + slice), zero outside, with neighbouring threads on
// neighbouring items whichever way the operand lies.
template <class Item, class Sum>
__device__ void load(const Item* data, int64_t lines, int64_t depth, int64_t line_stride,
                     int64_t depth_stride, int64_t first, int64_t p, Sum (*target)[tile + 1]) {
    const bool depth_fastest = llabs(depth_stride) < llabs(line_stride);
    for (int e = threadIdx.x; e < tile * slice; e += threads) {
        const int line = depth_fastest ? e / slice : e % tile;
        const int d = depth_fastest ? e % slice : e / tile;
        const bool inside = first + line < lines && p + d < depth;
        target[d][line] = inside ? data[(first + line) * line_stride + (p + d) * depth_stride] : Item{0};
    }
}

template <class Item, class Sum>
__global__ void __launch_bounds__(threads)
    multiply(MatrixView a, MatrixView b, MatrixView c, bool accumulate) {
    __shared__ Sum a_slice[slice][tile + 1], b_slice[slice][tile + 1];
    const int64_t row = int64_t{blockIdx.x} * tile, col = int64_t{blockIdx.y} * tile;
    const int y = threadIdx.x / side, x = threadIdx.x % side;
    Sum sum[per_thread][per_thread] = {};
    for (int64_t p = 0; p < a.cols; p += slice) {
        load(static_cast<const Item*>(a.data), a.rows, a.cols, a.row_stride, a.col_stride, row, p, a_slice);
        load(static_cast<const Item*>(b.data), b.cols, b.rows, b.col_stride, b.row_stride, col, p, b_slice);
        __syncthreads();
        for (int d = 0; d < slice; ++d)
            for (int i = 0; i < per_thread; ++i)
                for (int j = 0; j < per_thread; ++j)
                    sum[i][j] += a_slice[d][y + i * side] * b_slice[d][x + j * side];
        __syncthreads();
    }
    for (int i = 0; i < per_thread; ++i)
        for (int j = 0; j < per_thread; ++j) {
            const int64_t r = row + y + i * side, s = col + x + j * side;
            if (r >= c.rows || s >= c.cols) continue;
            Item& item = static_cast<Item*>(c.data)[r * c.row_stride + s * c.col_stride];
            item = static_cast<Item>((accumulate ? item : Item{0}) + sum[i][j]);
        }
}

template <class Item>
MatrixView part(const MatrixView& x, int64_t row, int64_t col, int64_t rows, int64_t cols) {
    Item* const first = static_cast<Item*>(x.data) + row * x.row_stride + col * x.col_stride;
    return {first, rows, cols, x.row_stride, x.col_stride};
}

template <class Item, class Sum>
void launch(const MatrixView& a, const MatrixView& b, const MatrixView& c, bool accumulate,
            cudaStream_t stream) {
    for (const Launch& each : launches(c.rows, c.cols)) {
        MatrixView a_part = part<Item>(a, each.row, 0, each.rows, a.cols);
        MatrixView b_part = part<Item>(b, 0, each.col, b.rows, each.cols);
        MatrixView c_part = part<Item>(c, each.row, each.col, each.rows, each.cols);
        void* arguments[] = {&a_part, &b_part, &c_part, &accumulate};
        // The status of this launch: the runtime's last error may be one of other code.
        const cudaError_t status =
            cudaLaunchKernel(reinterpret_cast<const void*>(multiply<Item, Sum>), dim3(each.x, each.y),
                             dim3(threads), arguments, 0, stream);
        if (status != cudaSuccess)
            throw DeviceError(std::string("[igemm] CUDA could not start the kernel: ") +
                              cudaGetErrorString(status));
    }
}

}  // namespace

bool compiled() { return true; }

void igemm(const MatrixView& a, const MatrixView& b, const MatrixView& c, int width, bool accumulate,
           void* stream) {
    if (c.rows == 0 || c.cols == 0) return;
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (width) {
        case 1:
            return launch<uint8_t, uint32_t>(a, b, c, accumulate, queue);
        case 2:
            return launch<uint16_t, uint32_t>(a, b, c, accumulate, queue);
        case 4:
            return launch<uint32_t, uint32_t>(a, b, c, accumulate, queue);
        default:
            return launch<uint64_t, uint64_t>(a, b, c, accumulate, queue);
    }
}

}  // namespace accelera::cuda
