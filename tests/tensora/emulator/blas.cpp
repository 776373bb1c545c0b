// cuBLAS on the CPU, as far as accelera.tensora calls it.
#include <complex>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

extern "C" {

int cuCtxGetCurrent(void** context);
int emulated_read(int device, void* to, unsigned long long from, size_t n);
int emulated_write(int device, unsigned long long to, const void* from, size_t n);
int emulated_enqueue(void* stream, std::function<int()>* work);

namespace {

float of_half(uint16_t bits) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return float(value);
}
uint16_t to_half(float value) {
    const auto half = _Float16(value);
    uint16_t bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
float of_bfloat(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}
uint16_t to_bfloat(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

constexpr int success = 0, invalid_value = 7, execution_failed = 13;

struct Handle {
    int device;
    void* stream = nullptr;
};

int current_device() {
    void* context = nullptr;
    cuCtxGetCurrent(&context);
    return int(reinterpret_cast<intptr_t>(context)) - 1;
}

using Number = std::complex<double>;
size_t size_of(int type) { return type == 2 || type == 14 ? 2 : type == 0 ? 4 : type == 5 ? 16 : 8; }

Number load(const char* at, int type) {
    uint16_t bits;
    std::memcpy(&bits, at, 2);
    if (type == 2) return of_half(bits);
    if (type == 14) return of_bfloat(bits);
    if (type == 0) return *reinterpret_cast<const float*>(at);
    if (type == 1) return *reinterpret_cast<const double*>(at);
    if (type == 4) return Number(*reinterpret_cast<const std::complex<float>*>(at));
    return *reinterpret_cast<const Number*>(at);
}
void store(char* at, int type, Number value) {
    const uint16_t bits = type == 2 ? to_half(float(value.real())) : to_bfloat(float(value.real()));
    if (type == 2 || type == 14) std::memcpy(at, &bits, 2);
    if (type == 0) *reinterpret_cast<float*>(at) = float(value.real());
    if (type == 1) *reinterpret_cast<double*>(at) = value.real();
    if (type == 4) *reinterpret_cast<std::complex<float>*>(at) = std::complex<float>(value);
    if (type == 5) *reinterpret_cast<Number*>(at) = value;
}

/// A matrix by columns, copied from the device.
struct Matrix {
    std::vector<char> data;
    int type, operation;
    int64_t leading;
    int status;
    Matrix(int device, const void* at, int type, int operation, int64_t rows, int64_t columns,
           int64_t leading)
        : type(type), operation(operation), leading(leading) {
        const int64_t n = operation ? rows : columns, m = operation ? columns : rows;
        data.resize(size_t((n - 1) * leading + m) * size_of(type));
        status = emulated_read(device, data.data(), reinterpret_cast<unsigned long long>(at), data.size());
    }
    Number of(int64_t i, int64_t j) const {
        const int64_t at = operation ? i * leading + j : j * leading + i;
        const Number value = load(data.data() + size_t(at) * size_of(type), type);
        return operation == 2 ? std::conj(value) : value;
    }
};

}  // namespace

/// Statuses that cublasCreate_v2 returns before it succeeds.
int emulated_blas_failures = 0;

int cublasCreate_v2(void** handle) {
    if (emulated_blas_failures && emulated_blas_failures--) return 1;
    if (current_device() < 0) return 1;
    return *handle = new Handle{current_device()}, success;
}
const char* cublasGetStatusString(int status) {
    return status == 1 ? "the library was not initialized" : "the GPU program failed to execute";
}
int cublasSetStream_v2(void* handle, void* stream) {
    return static_cast<Handle*>(handle)->stream = stream, success;
}
// Strides of a batch are not negative: the kernels of newer devices describe a batch without a sign.
int cublasGemmStridedBatchedEx(void* handle_pointer, int op_a, int op_b, int m, int n, int k,
                               const void* alpha, const void* a, int a_type, int lda, long long a_step,
                               const void* b, int b_type, int ldb, long long b_step, const void* beta,
                               void* c, int c_type, int ldc, long long c_step, int batch, int compute, int) {
    const Handle handle = *static_cast<Handle*>(handle_pointer);
    const int device = handle.device;
    if (current_device() != device) return execution_failed;
    if (lda < (op_a ? k : m) || ldb < (op_b ? n : k) || ldc < m || m < 0 || n < 0 || k < 0)
        return invalid_value;
    if (a_step < 0 || b_step < 0 || c_step < 0) return invalid_value;
    const bool wide = compute == 70;
    const double scale = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
    const double factor = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
    const auto multiply = [=] {
        for (int i = 0; i < batch; ++i) {
            const Matrix x(device, static_cast<const char*>(a) + i * a_step * int64_t(size_of(a_type)),
                           a_type, op_a, m, k, lda);
            const Matrix y(device, static_cast<const char*>(b) + i * b_step * int64_t(size_of(b_type)),
                           b_type, op_b, k, n, ldb);
            const auto at = reinterpret_cast<unsigned long long>(c) + i * c_step * int64_t(size_of(c_type));
            std::vector<char> out(size_t(int64_t(n - 1) * ldc + m) * size_of(c_type));
            const int status = emulated_read(device, out.data(), at, out.size());
            if (x.status || y.status || status) return x.status | y.status | status;
            for (int col = 0; col < n; ++col)
                for (int row = 0; row < m; ++row) {
                    Number sum = 0;
                    for (int l = 0; l < k; ++l) {
                        sum += x.of(row, l) * y.of(l, col);
                        if (!wide) sum = Number(std::complex<float>(sum));  // the sum has the compute type
                    }
                    char* const place = out.data() + size_t(int64_t(col) * ldc + row) * size_of(c_type);
                    store(place, c_type, factor * sum + (scale ? scale * load(place, c_type) : Number(0)));
                }
            emulated_write(device, at, out.data(), out.size());
        }
        return success;
    };
    return emulated_enqueue(handle.stream, new std::function<int()>(multiply)) ? execution_failed : success;
}

}  // extern "C"
