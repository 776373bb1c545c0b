// Products of matrices by cuBLAS, which is loaded while running; attention, which is made of them;
// convolution.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "tensora/core/basic_functions.h"
#include "tensora/cuda/kernels.h"

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
    const char* (*status_words)(int) = nullptr;
    // Streams that share a handle share its workspace, and sums of products then depend on their timing.
    std::map<std::pair<int, Stream>, Handle> handles;
    std::mutex mutex;  // a handle serves one thread at a time

    Cublas() {
        library = open_library(versions_of("libcublas.so"));
        if (!library)
            fail(Kind::device, "[tensora] cuBLAS (libcublas.so) of a version from 12 to ", newest_major(),
                 " is not found; install the CUDA toolkit, or pip install nvidia-cublas",
                 newest_major() == 12 ? "-cu12" : "");
        find(status_words, "cublasGetStatusString");
        find(create, "cublasCreate_v2");
        find(set_stream, "cublasSetStream_v2");
        find(gemm, "cublasGemmStridedBatchedEx");
    }

    /// The device's context is the current one.
    Handle handle(int device) {
        Handle& one = handles[{device, caller_stream(device)}];
        if (!one) start(one, device);
        check(set_stream(one, current_stream(device)), "to choose a stream");
        return one;
    }

    void check(int status, const char* what) const {
        if (status != 0)
            fail(Kind::device, "[CUDA] ", what, " failed: cuBLAS's status ", status, " (",
                 status_words(status), ")");
    }

  private:
    template <typename Pointer>
    void find(Pointer& pointer, const char* name) {
        pointer = reinterpret_cast<Pointer>(symbol(library, name));
        if (!pointer) fail(Kind::device, "[tensora] the cuBLAS that is installed has no ", name);
    }

    /// cuBLAS reports a lack of memory as "not initialized": release the cached blocks and retry once.
    void start(Handle& one, int device) {
        constexpr int not_initialized = 1;
        int status = create(&one);
        if (status == not_initialized) {
            finish(device, current_stream(device));  // with the interpreter's lock, as this one is held
            release_cached(device);
            status = create(&one);
        }
        if (status == not_initialized)
            fail(Kind::device_memory, "[CUDA] to start cuBLAS failed: cuBLAS's status 1 (",
                 status_words(status), "), as where the device has too little memory; ",
                 free_bytes(device).on_device, " bytes are free");
        check(status, "to start cuBLAS");
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
    const auto is_unit_stride = [](const Tensor& t, int fast, int slow) {
        const int n = t.dims();
        const bool unit = t.strides()[n - fast] == 1 || t.shape()[n - fast] == 1;
        return unit && (t.shape()[n - slow] == 1 || t.strides()[n - slow] >= t.shape()[n - fast]);
    };
    // cuBLAS does not define matrices of a batch in reverse order.
    const auto even = [&](const Tensor& t) { return batch_step(t, batch).value_or(-1) >= 0; };
    if (!(is_unit_stride(*x, 1, 2) || is_unit_stride(*x, 2, 1)) || !even(*x)) {
        Dims shape = batch;
        shape.push_back(x->shape()[x->dims() - 2]);
        shape.push_back(x->shape().back());
        x = contiguous(batch_step(*x, batch) ? x : expand(x, shape));
    }
    const int n = x->dims();
    const bool by_rows = is_unit_stride(*x, 1, 2);
    const int64_t fast = x->shape()[n - (by_rows ? 1 : 2)], slow = x->shape()[n - (by_rows ? 2 : 1)];
    const int64_t stride = x->strides()[n - (by_rows ? 2 : 1)];
    return {x, by_rows ? as_it_lies : transposed, slow == 1 ? std::max<int64_t>(fast, 1) : stride,
            batch_step(*x, batch).value_or(0)};
}

/// out = a b (+ out); the last two axes of each are those of the matrices.
void multiply(const Matrices& a, const Matrices& b, const Tensor& out, int64_t batch, bool add) {
    const int n = out.dims();
    const int64_t rows = out.shape()[n - 2], columns = out.shape()[n - 1];
    const int64_t inner = a.tensor->shape().back();
    for (const int64_t extent : {rows, columns, inner, batch, a.leading, b.leading})
        require_shape(extent <= INT32_MAX, "[matmul] an extent of ", extent,
                      " on a CUDA device; the most is ", INT32_MAX);
    const DType dtype = out.dtype();
    const double one[] = {1, 0}, none[] = {0, 0};
    const float one_float[] = {1, 0}, none_float[] = {0, 0};
    const bool wide = is_double(dtype);
    const void* const alpha = wide ? static_cast<const void*>(one) : one_float;
    const void* const zero = wide ? static_cast<const void*>(none) : none_float;
    const int type = data_type(dtype), device = out.device().index;
    const char *a_data = a.tensor->device_bytes(), *b_data = b.tensor->device_bytes();
    char* const c_data = out.device_bytes();
    const ContextScope context(device);
    const std::lock_guard lock(cublas().mutex);
    // By columns, as cuBLAS counts, the product of the transposed ones the other way round.
    cublas().check(cublas().gemm(cublas().handle(device), b.operation, a.operation, int(columns), int(rows),
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

// --- attention: blocks of queries, whose scores are there at once -----------------------------------------

namespace {

T last_sum(const T& x) { return tensora::sum(x, {x->dims() - 1}, true); }
T without(const T& x, const T& where_zero, double instead) {
    return where(equal(where_zero, like(where_zero, 0)), like(x, instead), x);
}

/// Heads of keys once for each head of queries, and the sum that is its gradient.
T repeated(const T& x, int64_t group) {
    const Dims& s = x->shape();
    if (group == 1) return x;
    return reshape(expand(unsqueeze(x, 2), {s[0], s[1], group, s[2], s[3]}), {s[0], -1, s[2], s[3]});
}
T gathered(const T& x, int64_t group) {
    const Dims& s = x->shape();
    return group == 1 ? x : tensora::sum(reshape(x, {s[0], s[1] / group, group, s[2], s[3]}), {2}, false);
}

/// Operands of attention in the type that is computed in, and its blocks of queries.
struct Attention {
    int64_t group, queries, keys, rows;
    bool causal;
    double scale;
    T query, key, value, mask;

    Attention(const Call& call, size_t mask_input) : causal(call.params.flag), scale(call.params.x) {
        const auto wide = [&](int i) {
            return is(call.in[i]->dtype(), halves) ? cast(call.in[i], DType::f32) : call.in[i];
        };
        query = wide(0);
        group = query->shape()[1] / std::max<int64_t>(1, call.in[1]->shape()[1]);
        key = repeated(wide(1), group);
        value = repeated(wide(2), group);
        queries = query->shape()[2];
        keys = key->shape()[2];
        if (call.in.size() > mask_input)
            mask = expand(wide(int(mask_input)), {query->shape()[0], query->shape()[1], queries, keys});
        const int64_t row = query->shape()[0] * query->shape()[1] * std::max<int64_t>(keys, 1);
        rows = std::clamp<int64_t>((int64_t(1) << 24) / row, 16, std::max<int64_t>(queries, 16));
    }

    int64_t length(int64_t first) const { return std::min(rows, queries - first); }
    /// Keys that a block of queries sees.
    int64_t seen(int64_t first) const { return causal ? std::min(keys, first + length(first)) : keys; }
    T block(const T& x, int64_t first) const { return narrow(x, 2, first, length(first)); }

    T scores(int64_t first) const {
        const int64_t n = seen(first);
        T result = tensora::matmul(block(query, first), mt(narrow(key, 2, 0, n))) * scale;
        if (mask) result = result + narrow(block(mask, first), 3, 0, n);
        if (!causal) return result;
        return where(to_device(lower_mask(length(first), n, first), query->device()), result,
                     like(result, -std::numeric_limits<double>::infinity()));
    }
};

}  // namespace

void attention(Call& call) {
    if (call.out[1]->size() == 0) return;
    const Attention given(call, 3);
    for (int64_t first = 0; first < given.queries; first += given.rows) {
        const T scores = given.scores(first);
        const T none = like(scores, -std::numeric_limits<double>::infinity());
        if (scores->shape().back() == 0) {
            copy_on_device(*like(scores, 0), *given.block(call.out[0], first));
            copy_on_device(*none, *given.block(call.out[1], first));
            continue;
        }
        const T most = tensora::max(scores, {3}, true);
        const T from = where(equal(most, none), like(most, 0), most);
        const T weights = exp(scores - from), total = last_sum(weights);
        const T values = narrow(given.value, 2, 0, given.seen(first));
        const T made = tensora::matmul(weights / without(total, total, 1), values);
        copy_on_device(*made, *given.block(call.out[0], first));
        copy_on_device(*reshape(from + log(total), given.block(call.out[1], first)->shape()),
                       *given.block(call.out[1], first));
    }
}

void attention_backward(Call& call) {
    const Attention given(call, 6);
    const DType dtype = given.query->dtype();
    const T g = cast(call.in[3], dtype), out = cast(call.in[4], dtype), lse = unsqueeze(call.in[5], 3);
    const T dk = zeros(given.key->shape(), dtype), dv = zeros(given.value->shape(), dtype);
    static const Op& add_op = op_named("add");
    const auto add_to = [](const T& sum, const T& part) {
        const T both[] = {sum, part};
        write_elementwise(add_op, both, *sum);
    };
    for (int64_t first = 0; first < given.queries; first += given.rows) {
        const int64_t n = given.seen(first);
        if (n == 0) {
            copy_on_device(*like(given.query, 0), *given.block(call.out[0], first));
            continue;
        }
        const T none = like(lse, -std::numeric_limits<double>::infinity());
        const T own = given.block(lse, first), slope = given.block(g, first);
        const T hidden = equal(own, none);
        const T p = where(hidden, like(own, 0), exp(given.scores(first) - where(hidden, like(own, 0), own)));
        const T key = narrow(given.key, 2, 0, n), value = narrow(given.value, 2, 0, n);
        const T mean = last_sum(slope * given.block(out, first));
        const T slopes = p * (tensora::matmul(slope, mt(value)) - mean) * given.scale;
        copy_on_device(*tensora::matmul(slopes, key), *given.block(call.out[0], first));
        add_to(narrow(dk, 2, 0, n), tensora::matmul(mt(slopes), given.block(given.query, first)));
        add_to(narrow(dv, 2, 0, n), tensora::matmul(mt(p), slope));
    }
    copy_on_device(*gathered(dk, given.group), *call.out[1]);
    copy_on_device(*gathered(dv, given.group), *call.out[2]);
}

// --- convolution: a thread for each output, or a block for each weight -------------------------------------

namespace {

/// One of the three kernels of a convolution, whose images have shape x, weight w, and y behind it.
void run_convolution(Call& call, const char* function, const Tensor& x, const Tensor& w, const Tensor& y,
                     const std::array<const Tensor*, 4>& tensors) {
    const Params& params = call.params;
    const int64_t groups = params.mode, n = params.a.size();
    Arguments arguments;
    arguments.add(x.shape()[0]).add(groups).add(w.shape()[1]).add(w.shape()[0] / groups);
    add_extents(arguments, x.shape(), 2, 1);
    add_extents(arguments, y.shape(), 2, 1);
    add_extents(arguments, w.shape(), 2, 1);
    add_extents(arguments, params.a, 0, 1);
    add_extents(arguments, params.b, 0, 0);
    add_extents(arguments, Dims(params.c.begin(), n), 0, 1);
    for (const Tensor* one : tensors) arguments.add_tensor(one);
    const int64_t size = call.out[0]->size();
    const bool by_blocks = std::strcmp(function, "convolution_weight") == 0;
    run_kernel(call.out[0]->device().index,
               {call.op.name, by_blocks ? "tensora/cuda/rows.cuh" : "tensora/cuda/elements.cuh",
                text("using Arguments = Convolution<", type_name(x.dtype()), ">;"), text(function, "(a);")},
               {by_blocks ? size : blocks_for(size), 256}, arguments);
}

}  // namespace

void conv(Call& call) {
    if (call.out[0]->size() == 0) return;
    const T x = contiguous(call.in[0]), w = contiguous(call.in[1]);
    const T bias = call.in.size() == 3 ? contiguous(call.in[2]) : T();
    run_convolution(call, "convolution", *x, *w, *call.out[0],
                    {x.get(), w.get(), bias.get(), call.out[0].get()});
}

void conv_input(Call& call) {
    if (call.out[0]->size() == 0) return;
    const T y = contiguous(call.in[0]), w = contiguous(call.in[1]);
    run_convolution(call, "convolution_input", *call.out[0], *w, *y,
                    {y.get(), w.get(), nullptr, call.out[0].get()});
}

void conv_weight(Call& call) {
    if (call.out[0]->size() == 0) return;
    const T x = contiguous(call.in[0]), y = contiguous(call.in[1]);
    run_convolution(call, "convolution_weight", *x, *call.out[0], *y,
                    {x.get(), y.get(), nullptr, call.out[0].get()});
}

}  // namespace accelera::tensora::cuda
