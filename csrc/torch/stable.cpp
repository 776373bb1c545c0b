// Interception for any torch that keeps its C functions: they are looked up when this library is bound, so
// that no header of torch and no version is built in. Kernels here answer small calls; all others go to
// Python.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Torch raises what python_type() returns for exceptions of this type; it finds the type by its name.
namespace torch {
struct __attribute__((visibility("default"))) PyTorchError : std::exception {
    explicit PyTorchError(std::string text) : msg(std::move(text)) {}
    virtual void* python_type() = 0;
    const char* what() const noexcept override { return msg.c_str(); }
    std::string msg;
};
}  // namespace torch

namespace accelera {
namespace {

using Tensor = struct Opaque*;
using Library = struct OpaqueLibrary*;
using Stack = uint64_t*;
using Kernel = void (*)(Stack, uint64_t, uint64_t);

// Torch's C functions; each returns 0 unless it failed.
struct Torch {
    int32_t (*library_init_impl)(const char*, const char*, const char*, uint32_t, Library*);
    int32_t (*library_impl)(Library, const char*, Kernel);
    int32_t (*delete_library_object)(Library);
    int32_t (*call_dispatcher)(const char*, const char*, Stack);
    int32_t (*get_dim)(Tensor, int64_t*);
    int32_t (*get_sizes)(Tensor, int64_t**);
    int32_t (*get_dtype)(Tensor, int32_t*);
    size_t (*dtype_element_size)(int32_t);
    int32_t (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Tensor*);
    int32_t (*delete_tensor_object)(Tensor);
    int32_t (*cpu_mm_out)(Tensor, Tensor, Tensor);
    int32_t (*cpu_bmm_out)(Tensor, Tensor, Tensor);
} functions;

std::atomic<int64_t> least_bytes{INT64_MAX}, least_size{INT64_MAX};
thread_local int passing_level = 0;
thread_local void* refused = nullptr;

// An exception of Python on its way through torch.
struct Refused : torch::PyTorchError {
    explicit Refused(void* type) : PyTorchError("a handler refused"), type_(type) {}
    void* python_type() override { return type_; }

  private:
    void* type_;
};

void check(int32_t failed) {
    if (failed) throw std::runtime_error("a C function of torch failed; it has written why to stderr");
}

Tensor tensor(uint64_t value) { return reinterpret_cast<Tensor>(value); }

// Shape and type of a matrix, or of a batch of them.
struct Shape {
    int64_t dims;
    int64_t* sizes;
    int32_t dtype;

    explicit Shape(Tensor of) {
        check(functions.get_dim(of, &dims));
        check(functions.get_sizes(of, &sizes));
        check(functions.get_dtype(of, &dtype));
    }

    int64_t elements() const {
        int64_t product = 1;
        for (int64_t i = 0; i < dims; ++i) product *= sizes[i];
        return product;
    }

    int64_t longest() const {
        int64_t found = 1;
        for (int64_t i = 0; i < dims; ++i) found = found < sizes[i] ? sizes[i] : found;
        return found;
    }
};

// float16, float32, float64, complex64, complex128, bfloat16: the numbers are part of torch's file format.
bool is_floating(int32_t dtype) {
    return (dtype >= 5 && dtype <= 7) || dtype == 9 || dtype == 10 || dtype == 15;
}

// A product of two matrices, or of two batches of matrices.
struct Product {
    Shape first, second;
    int64_t sizes[3];

    Product(Tensor a, Tensor b) : first(a), second(b) {}

    // Whether the operands fit each other and have `dims` dimensions, so that torch has nothing to refuse.
    bool fits(int64_t dims) {
        if (!is_floating(first.dtype)) return false;
        if (first.dims != dims || second.dims != dims || first.dtype != second.dtype) return false;
        if (first.sizes[dims - 1] != second.sizes[dims - 2]) return false;
        if (dims == 3 && first.sizes[0] != second.sizes[0]) return false;
        for (int64_t i = 0; i < dims - 1; ++i) sizes[i] = first.sizes[i];
        sizes[dims - 1] = second.sizes[dims - 1];
        return true;
    }

    bool gives(const Shape& out) const {
        if (out.dims != first.dims || out.dtype != first.dtype) return false;
        for (int64_t i = 0; i < out.dims; ++i)
            if (out.sizes[i] != sizes[i]) return false;
        return true;
    }

    bool is_worthwhile() const {
        const int64_t longest = std::max(first.longest(), second.longest());
        if (passing_level > 1 || longest < least_size.load(std::memory_order_relaxed)) return false;
        int64_t elements = first.elements() + second.elements(), result = 1;
        for (int64_t i = 0; i < first.dims; ++i) result *= sizes[i];
        const auto item = static_cast<int64_t>(functions.dtype_element_size(first.dtype));
        return (elements + result) * item >= least_bytes.load(std::memory_order_relaxed);
    }

    // The result, not yet computed; null when torch could not make it.
    Tensor make_result() const {
        int64_t strides[3], step = 1;
        for (int64_t i = first.dims - 1; i >= 0; --i) {
            strides[i] = step;
            step *= sizes[i] > 1 ? sizes[i] : 1;
        }
        Tensor made = nullptr;
        const bool failed = functions.empty_strided(first.dims, sizes, strides, first.dtype, 0, -1, &made);
        return failed ? nullptr : made;
    }
};

// Let Python answer: it hands the call to its handler, or to torch's kernel, whose refusals it words as torch
// does.
void ask_python(const char* name, const char* overload, Stack stack) {
    refused = nullptr;
    check(functions.call_dispatcher(name, overload, stack));
    if (refused) {
        functions.delete_tensor_object(tensor(stack[0]));
        throw Refused(std::exchange(refused, nullptr));
    }
}

void finish(Stack stack, Tensor result) {
    functions.delete_tensor_object(tensor(stack[0]));
    functions.delete_tensor_object(tensor(stack[1]));
    stack[0] = reinterpret_cast<uint64_t>(result);
}

// What C cannot do, Python tries again: there torch says what is wrong.
template <int64_t dims, auto torch_kernel>
void multiply(Stack stack, uint64_t, uint64_t) {
    Product product(tensor(stack[0]), tensor(stack[1]));
    if (product.fits(dims) && !product.is_worthwhile()) {
        const Tensor result = product.make_result();
        if (result && !(functions.*torch_kernel)(result, tensor(stack[0]), tensor(stack[1])))
            return finish(stack, result);
        if (result) functions.delete_tensor_object(result);
    }
    ask_python(dims == 2 ? "accelera_stable::mm" : "accelera_stable::bmm", "", stack);
}

template <int64_t dims, auto torch_kernel>
void multiply_into(Stack stack, uint64_t, uint64_t) {
    Product product(tensor(stack[0]), tensor(stack[1]));
    const Tensor out = tensor(stack[2]);
    if (product.fits(dims) && product.gives(Shape(out)) && !product.is_worthwhile())
        if (!(functions.*torch_kernel)(out, tensor(stack[0]), tensor(stack[1]))) return finish(stack, out);
    ask_python(dims == 2 ? "accelera_stable::mm" : "accelera_stable::bmm", "out", stack);
}

const std::map<std::string, Kernel>& operators() {
    static const std::map<std::string, Kernel> all{
        {"mm", &multiply<2, &Torch::cpu_mm_out>},
        {"mm.out", &multiply_into<2, &Torch::cpu_mm_out>},
        {"bmm", &multiply<3, &Torch::cpu_bmm_out>},
        {"bmm.out", &multiply_into<3, &Torch::cpu_bmm_out>},
    };
    return all;
}

std::vector<Library> libraries;

template <class Function>
void find(void* library, const char* name, Function& found) {
    found = reinterpret_cast<Function>(dlsym(library, name));
    if (!found) throw std::runtime_error(std::string("this torch has no ") + name);
}

void find_all(void* library) {
    find(library, "aoti_torch_library_init_impl", functions.library_init_impl);
    find(library, "aoti_torch_library_impl", functions.library_impl);
    find(library, "aoti_torch_delete_library_object", functions.delete_library_object);
    find(library, "aoti_torch_call_dispatcher", functions.call_dispatcher);
    find(library, "aoti_torch_get_dim", functions.get_dim);
    find(library, "aoti_torch_get_sizes", functions.get_sizes);
    find(library, "aoti_torch_get_dtype", functions.get_dtype);
    find(library, "aoti_torch_dtype_element_size", functions.dtype_element_size);
    find(library, "aoti_torch_empty_strided", functions.empty_strided);
    find(library, "aoti_torch_delete_tensor_object", functions.delete_tensor_object);
    find(library, "aoti_torch_cpu_mm_out", functions.cpu_mm_out);
    find(library, "aoti_torch_cpu_bmm_out", functions.cpu_bmm_out);
}

// Run something and return what went wrong, or null.
template <class Work>
const char* fault_of(Work work) {
    static thread_local std::string fault;
    try {
        work();
        return nullptr;
    } catch (const std::exception& error) {
        fault = error.what();
        return fault.c_str();
    }
}

}  // namespace
}  // namespace accelera

// What Python calls.
#define ACCELERA_EXPORT extern "C" __attribute__((visibility("default")))

// Look up torch's functions in its library, which is loaded already. Returns what went wrong, or null.
ACCELERA_EXPORT const char* accelera_bind(const char* path) {
    return accelera::fault_of([path] {
        void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (!library) throw std::runtime_error("torch's library is not loaded");
        accelera::find_all(library);
    });
}

// Names of the operators, one in a line.
ACCELERA_EXPORT const char* accelera_operators() { return "mm\nmm.out\nbmm\nbmm.out\n"; }

ACCELERA_EXPORT void accelera_set_thresholds(int64_t least_bytes, int64_t least_size) {
    accelera::least_bytes = least_bytes;
    accelera::least_size = least_size;
}

ACCELERA_EXPORT void accelera_set_level(int level) { accelera::passing_level = level; }

// Have the call that this thread is in raise the type, whose making gives the exception that was meant.
ACCELERA_EXPORT void accelera_refuse(void* type) { accelera::refused = type; }

// Put our kernels before torch's on the CPU. Returns what went wrong, or null.
ACCELERA_EXPORT const char* accelera_register(const char* const* names, int count, const char*) {
    return accelera::fault_of([names, count] {
        accelera::Library library = nullptr;
        accelera::check(accelera::functions.library_init_impl("aten", "CPU", __FILE__, __LINE__, &library));
        accelera::libraries.push_back(library);
        for (int i = 0; i < count; ++i)
            accelera::check(
                accelera::functions.library_impl(library, names[i], accelera::operators().at(names[i])));
    });
}

ACCELERA_EXPORT void accelera_unregister() {
    for (auto* library : accelera::libraries) accelera::functions.delete_library_object(library);
    accelera::libraries.clear();
}
