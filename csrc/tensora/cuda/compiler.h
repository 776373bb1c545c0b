#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tensora/core/tensor.h"
#include "tensora/cuda/driver.h"

namespace accelera::tensora::cuda {

/// Arguments of a kernel, laid out as its one parameter, a struct whose members are aligned as in C.
class Arguments {
  public:
    template <typename V>
    Arguments& add(const V& value) {
        static_assert(alignof(V) <= 8);
        return add_bytes(&value, sizeof(V), alignof(V));
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

}  // namespace accelera::tensora::cuda
