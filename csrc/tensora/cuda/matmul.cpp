// Products of matrices by cuBLAS, which is loaded while running.
#include <array>
#include <mutex>

#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"

namespace accelera::tensora::cuda {

namespace {

using Handle = void*;
constexpr int as_it_lies = 0, transposed = 1;  // cublasOperation_t
constexpr int default_algorithm = -1;

struct Cublas {
    void* library = nullptr;
    int (*create)(Handle*) = nullptr;
    int (*set_stream)(Handle, Stream) = nullptr;
    int (*gemm)(Handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a, int a_type,
                int lda, long long a_step, const void* b, int b_type, int ldb, long long b_step,
                const void* beta, void* c, int c_type, int ldc, long long c_step, int batch, int compute,
                int algorithm) = nullptr;
    std::array<Handle, Device::most> handles{};
    std::mutex mutex;  // a handle serves one thread at a time

    Cublas() {
        library = open_library({"libcublas.so.13", "libcublas.so.12", "libcublas.so"});
        if (!library)
            fail(Kind::runtime,
                 "tensora: cuBLAS (libcublas.so) is not found; install the CUDA toolkit, or pip install "
                 "nvidia-cublas");
        find(create, "cublasCreate_v2");
        find(set_stream, "cublasSetStream_v2");
        find(gemm, "cublasGemmStridedBatchedEx");
    }

    Handle handle(int device) {
        Handle& one = handles[size_t(device)];
        if (!one) check(create(&one), "to start cuBLAS");
        check(set_stream(one, current_stream(device)), "to choose a stream");
        return one;
    }

    static void check(int status, const char* what) {
        if (status != 0) fail(Kind::runtime, "CUDA: ", what, " failed: cuBLAS's status ", status);
    }

  private:
    template <typename Pointer>
    void find(Pointer& pointer, const char* name) {
        pointer = reinterpret_cast<Pointer>(symbol(library, name));
        if (!pointer) fail(Kind::runtime, "tensora: the cuBLAS that is installed has no ", name);
    }
};

Cublas& cublas() {
    static Cublas* const one = new Cublas;
    return *one;
}

/// cudaDataType_t
int data_type(DType dtype) {
    switch (dtype) {
        case DType::f16:
            return 2;
        case DType::bf16:
            return 14;
        case DType::f32:
            return 0;
        case DType::f64:
            return 1;
        case DType::c64:
            return 4;
        default:
            return 5;
    }
}
bool is_double(DType dtype) { return dtype == DType::f64 || dtype == DType::c128; }
int compute_type(DType dtype) { return is_double(dtype) ? 70 : 68; }

/// A batch of matrices as cuBLAS sees them: by rows here is transposed there.
struct Matrices {
    T tensor;
    int operation;
    int64_t leading;
    int64_t step;  ///< between matrices; 0: the same for all
};

/// Distance of the matrices of a batch of this shape; nothing where they do not lie evenly.
std::optional<int64_t> batch_step(const Tensor& x, const Dims& batch) {
    int64_t step = 0, extent = 1;
    bool found = false;
    const int skip = batch.size() - (x.dims() - 2);
    for (int i = batch.size() - 1; i >= 0; --i) {
        if (batch[i] == 1) continue;
        const bool own = i >= skip && x.shape()[i - skip] != 1;
        const int64_t here = own ? x.strides()[i - skip] : 0;
        if (!found)
            step = here, found = true;
        else if (here != step * extent)
            return std::nullopt;
        extent *= batch[i];
    }
    return step;
}

Matrices matrices(const T& given, DType dtype, const Dims& batch) {
    T x = cast(given, dtype);
    const auto lies = [](const Tensor& t, int fast, int slow) {
        const int n = t.dims();
        const bool unit = t.strides()[n - fast] == 1 || t.shape()[n - fast] == 1;
        return unit && (t.shape()[n - slow] == 1 || t.strides()[n - slow] >= t.shape()[n - fast]);
    };
    if (!(lies(*x, 1, 2) || lies(*x, 2, 1)) || !batch_step(*x, batch)) {
        Dims shape = batch;
        shape.push_back(x->shape()[x->dims() - 2]);
        shape.push_back(x->shape().back());
        x = contiguous(batch_step(*x, batch) ? x : expand(x, shape));
    }
    const int n = x->dims();
    const bool by_rows = lies(*x, 1, 2);
    const int64_t fast = x->shape()[n - (by_rows ? 1 : 2)], slow = x->shape()[n - (by_rows ? 2 : 1)];
    const int64_t stride = x->strides()[n - (by_rows ? 2 : 1)];
    return {x, by_rows ? as_it_lies : transposed, slow == 1 ? std::max<int64_t>(fast, 1) : stride,
            *batch_step(*x, batch)};
}

/// out = a b (+ out); the last two axes of each are those of the matrices.
void multiply(const Matrices& a, const Matrices& b, const Tensor& out, int64_t batch, bool add) {
    const int n = out.dims();
    const int64_t rows = out.shape()[n - 2], columns = out.shape()[n - 1];
    const int64_t inner = a.tensor->shape().back();
    for (const int64_t extent : {rows, columns, inner, batch, a.leading, b.leading})
        require(extent <= INT32_MAX, "matmul: an extent of ", extent, " on a CUDA device; the most is ",
                INT32_MAX);
    const DType dtype = out.dtype();
    const double one[] = {1, 0}, none[] = {0, 0};
    const float one_float[] = {1, 0}, none_float[] = {0, 0};
    const bool wide = is_double(dtype);
    const void* const alpha = wide ? static_cast<const void*>(one) : one_float;
    const void* const zero = wide ? static_cast<const void*>(none) : none_float;
    const int type = data_type(dtype), device = out.device().index;
    const char *a_data = a.tensor->device_bytes(), *b_data = b.tensor->device_bytes();
    char* const c_data = out.device_bytes();
    const std::lock_guard lock(cublas().mutex);
    // By columns, as cuBLAS counts, the product of the transposed ones the other way round.
    Cublas::check(cublas().gemm(cublas().handle(device), b.operation, a.operation, int(columns), int(rows),
                                int(inner), alpha, b_data, type, int(b.leading), b.step, a_data, type,
                                int(a.leading), a.step, add ? alpha : zero, c_data, type, int(columns),
                                rows * columns, int(batch), compute_type(dtype), default_algorithm),
                  "a product of matrices");
}

}  // namespace

void matmul(Call& call) {
    const Tensor& out = *call.out[0];
    if (out.size() == 0) return;
    if (call.input(0).shape().back() == 0) return fill_on_device(out);
    if (!is(out.dtype(), inexact)) return compute_on_host(call, out.device());
    const Dims batch(out.shape().begin(), out.dims() - 2);
    multiply(matrices(call.in[0], out.dtype(), batch), matrices(call.in[1], out.dtype(), batch), out,
             batch.product(), false);
}

void linear(Call& call) {
    const Tensor& out = *call.out[0];
    if (out.size() == 0) return;
    const DType dtype = out.dtype();
    const int64_t columns = out.shape().back(), rows = out.size() / columns, inner = call.input(1).shape()[1];
    const bool biased = call.in.size() > 2;
    if (biased)
        copy_on_device(*expand(cast(call.in[2], dtype), out.shape()), out);
    else if (inner == 0)
        fill_on_device(out);
    if (inner == 0) return;
    const T flat = out.alias({{rows, columns}, {columns, 1}, 0});
    const T x = reshape(contiguous(call.in[0]), {rows, inner});
    multiply(matrices(x, dtype, {}), matrices(mt(call.in[1]), dtype, {}), *flat, 1, biased);
}

}  // namespace accelera::tensora::cuda
