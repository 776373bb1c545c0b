#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tensora/core/device_kernels.h"
#include "tensora/core/op.h"
#include "tensora/device/driver.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora::cuda {

/// Arguments of a kernel, laid out as its one parameter, a struct whose members are aligned as in C.
class Arguments {
  public:
    template <typename V>
    Arguments& add(const V& value) {
        static_assert(alignof(V) <= 8);
        return add_bytes(static_cast<const void*>(&value), sizeof(V), alignof(V));
    }
    Arguments& add(const Dims& values) { return add_bytes(values.begin(), size_t(values.size()) * 8, 8); }
    /// A device's memory, or a tensor's elements there; null where there is no tensor.
    Arguments& add_tensor(const Tensor* tensor) { return add(tensor ? tensor->device_bytes() : nullptr); }
    Arguments& add_bytes(const void* data, size_t nbytes, size_t alignment) {
        const size_t begin = (bytes_.size() + alignment - 1) / alignment * alignment;
        bytes_.resize(begin + nbytes);
        std::memcpy(bytes_.data() + begin, data, nbytes);
        return *this;
    }
    size_t size() const { return bytes_.size(); }
    void* data() { return bytes_.data(); }

  private:
    std::vector<char> bytes_;
};

/// Extents of images, or numbers for each of them, as three; the first ones are `missing`.
inline void add_extents(Arguments& arguments, const Dims& shape, int skip, int64_t missing) {
    const int absent = 3 - (shape.size() - skip);
    for (int i = 0; i < 3; ++i) arguments.add(i < absent ? missing : shape[skip + i - absent]);
}

/// Blocks of a kernel with a thread for each of n elements.
inline int64_t blocks_for(int64_t n) { return (n + 255) / 256; }
/// Threads of a block for lines of n elements: a power of two, at most 256.
inline int block_for(int64_t n) {
    int size = 32;
    while (size < 256 && size < n) size *= 2;
    return size;
}

/// Name of an element type in the sources for the device.
const char* type_name(DType dtype);

/// Run a kernel: `body` is the body of a function of `arguments`, of a type that `declarations` declares as
/// `struct Arguments`; `header` is the one of the device's sources that it needs. Compiled for the device at
/// its first use in the process, and taken from the folder of compiled kernels if it is there.
struct Source {
    const char* name;
    const char* header;
    std::string declarations;
    std::string body;
};
void run_kernel(int device, const Source& source, const Launch& launch, Arguments& arguments);

/// The whole text that is compiled.
std::string full_text(const Source& source);
/// Text of a source for the device that the library carries, or an empty one.
std::string carried_source(const std::string& name);
std::vector<std::string> carried_names();
/// Machine code (or, for an architecture as "compute_75", PTX) of a text; raises with the compiler's words.
std::string compile(const std::string& text, const std::string& architecture);
/// Where compiled kernels are kept from run to run; empty: nowhere.
void set_kernel_folder(const std::string& path);
/// Kernels compiled in this process, and those taken from the folder.
struct KernelCounts {
    int64_t compiled = 0, loaded = 0;
};
KernelCounts kernel_counts();

// --- elementwise programs

/// Text of the kernel that runs it.
std::string fused_source(const FusedProgram& program);
/// An operation on elements in the sources for the device: "where", "cast", or a formula of operands of a
/// type.
std::string formula_text(const char* formula, DType operands, DType result,
                         std::span<const std::string> inputs);
// --- reductions

/// How the elements of one type become one: a template of elements.cuh, and the type that it joins.
struct Folded {
    const char* join;
    DType accumulator;
};
/// Of "sum", "prod", "max", "min", "any" or "all".
Folded folded(const char* reduction, DType dtype);

// --- kernels of the op table's entries: the call's outputs are there, its inputs on the same device

void sum(Call& call);
void prod(Call& call);
void max(Call& call);
void min(Call& call);
void any(Call& call);
void all(Call& call);
void argmax(Call& call);
void argmin(Call& call);
void cumsum(Call& call);
void cumprod(Call& call);
void logcumsumexp(Call& call);
void linear_recurrence(Call& call);
void running_extreme(Call& call);
void argsort(Call& call);
void searchsorted(Call& call);

void take(Call& call);
void take_add(Call& call);
void put(Call& call);
void take_along(Call& call);
void scatter_add(Call& call);
void scatter_reduce(Call& call);

void softmax(Call& call);
void log_softmax(Call& call);
void softmax_backward(Call& call);
void log_softmax_backward(Call& call);
void cross_entropy(Call& call);
void cross_entropy_backward(Call& call);
void layer_norm(Call& call);
void layer_norm_backward(Call& call);
void channel_norm(Call& call);
void channel_norm_backward(Call& call);

void matmul(Call& call);
void linear(Call& call);
void attention(Call& call);
void attention_backward(Call& call);
void conv(Call& call);
void conv_input(Call& call);
void conv_weight(Call& call);
void max_pool(Call& call);
void avg_pool(Call& call);
void avg_pool_back(Call& call);
void unfold(Call& call);
void fold(Call& call);

/// One step over a parameter; all that it points to lies on `device`.
void sgd_step(const Tensor& param, const Tensor& grad, const Tensor* buffer, const SgdStep& options);
struct AdamTensors {
    const Tensor *param, *grad, *mean, *square, *most;  ///< the last null: no AMSGrad
};
void adam_step(const AdamTensors& tensors, const AdamStep& options);

}  // namespace accelera::tensora::cuda
