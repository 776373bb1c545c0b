// NVRTC, the compiler of CUDA that is loaded while running, and the kernels that it made.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensora/base/threads.h"
#include "tensora/cuda/kernels.h"
#include "tensora/device/graph.h"

// The sources for the device, as text in the library.
#ifdef __linux__
#define CARRIED(symbol, path)                                                                              \
    asm(".pushsection .rodata\n.hidden tensora_" #symbol "\n.global tensora_" #symbol "\ntensora_" #symbol \
        ":\n.incbin \"" TENSORA_SOURCES path "\"\n.byte 0\n.popsection\n");                                \
    extern "C" const char tensora_##symbol[];
#else
#define CARRIED(symbol, path) static const char tensora_##symbol[] = "";
#endif
CARRIED(element, "tensora/base/element.h")
CARRIED(math, "tensora/kernels/math.h")
CARRIED(scalar, "tensora/kernels/scalar.h")
CARRIED(formulas, "tensora/kernels/formulas.def")
CARRIED(device_math, "tensora/base/device_math.cuh")
CARRIED(elements, "tensora/cuda/elements.cuh")
CARRIED(rows, "tensora/cuda/rows.cuh")

namespace accelera::tensora::cuda {

namespace {

struct Carried {
    const char* name;
    const char* text;
};
constexpr int n_carried = 7;
const Carried* carried() {
    static const Carried all[n_carried] = {{"tensora/base/element.h", tensora_element},
                                           {"tensora/kernels/math.h", tensora_math},
                                           {"tensora/kernels/scalar.h", tensora_scalar},
                                           {"tensora/kernels/formulas.def", tensora_formulas},
                                           {"tensora/base/device_math.cuh", tensora_device_math},
                                           {"tensora/cuda/elements.cuh", tensora_elements},
                                           {"tensora/cuda/rows.cuh", tensora_rows}};
    return all;
}

/// Functions of NVRTC, by their names there.
struct Nvrtc {
    using Result = int;
    using Program = void*;
    void* library = nullptr;
    std::string absence;

    Result (*nvrtcVersion)(int*, int*);
    Result (*nvrtcCreateProgram)(Program*, const char*, const char*, int, const char* const*,
                                 const char* const*);
    Result (*nvrtcCompileProgram)(Program, int, const char* const*);
    Result (*nvrtcGetCUBINSize)(Program, size_t*);
    Result (*nvrtcGetCUBIN)(Program, char*);
    Result (*nvrtcGetPTXSize)(Program, size_t*);
    Result (*nvrtcGetPTX)(Program, char*);
    Result (*nvrtcGetProgramLogSize)(Program, size_t*);
    Result (*nvrtcGetProgramLog)(Program, char*);
    Result (*nvrtcDestroyProgram)(Program*);
    Result (*nvrtcGetNumSupportedArchs)(int*);
    Result (*nvrtcGetSupportedArchs)(int*);
    const char* (*nvrtcGetErrorString)(Result);
    int major = 0, minor = 0;

    Nvrtc() {
        library = open_library(versions_of("libnvrtc.so"));
        if (!library) {
            absence = text("CUDA's run-time compiler (libnvrtc.so) of a version from 12 to ", newest_major(),
                           " is not found; install the CUDA toolkit, or pip install ", package());
            return;
        }
        find_all();
        if (absence.empty()) check_version();
    }

    /// Architecture that code for a device of this compute capability is compiled for: the device's own, or,
    /// for a device that is newer than the compiler, text that the driver compiles for it.
    std::string architecture_for(int capability) const {
        int n = 0;
        nvrtcGetNumSupportedArchs(&n);
        std::vector<int> all(static_cast<size_t>(n));
        nvrtcGetSupportedArchs(all.data());
        const auto after = std::upper_bound(all.begin(), all.end(), capability);
        if (after == all.begin())
            fail(Kind::device, "[tensora] CUDA's run-time compiler ", major, '.', minor,
                 " does not compile for compute capability ", capability / 10, '.', capability % 10,
                 "; install an older one, as nvidia-cuda-nvrtc-cu12");
        return text(after[-1] == capability ? "sm_" : "compute_", after[-1]);
    }

  private:
    /// Name of the compiler's package for the driver.
    static const char* package() {
        return newest_major() == 12 ? "nvidia-cuda-nvrtc-cu12" : "nvidia-cuda-nvrtc";
    }

    void check_version() {
        nvrtcVersion(&major, &minor);
        if (major > newest_major() || major < 12)
            absence = text("CUDA's run-time compiler is of version ", major, '.', minor,
                           ", and the driver takes code of versions from 12 to ", newest_major(),
                           "; pip install ", package());
    }

    void find_all() {
#define FIND(name) find(name, #name)
        FIND(nvrtcVersion), FIND(nvrtcCreateProgram), FIND(nvrtcCompileProgram), FIND(nvrtcGetCUBINSize);
        FIND(nvrtcGetCUBIN), FIND(nvrtcGetPTXSize), FIND(nvrtcGetPTX), FIND(nvrtcGetProgramLogSize);
        FIND(nvrtcGetProgramLog), FIND(nvrtcDestroyProgram), FIND(nvrtcGetErrorString);
        FIND(nvrtcGetNumSupportedArchs), FIND(nvrtcGetSupportedArchs);
#undef FIND
    }

    template <typename Pointer>
    void find(Pointer& pointer, const char* name) {
        pointer = reinterpret_cast<Pointer>(symbol(library, name));
        if (!pointer && absence.empty()) absence = text("CUDA's run-time compiler has no ", name);
    }
};

const Nvrtc& nvrtc() {
    static const Nvrtc* const one = new Nvrtc;
    if (!one->absence.empty()) fail(Kind::device, "[tensora] ", one->absence);
    return *one;
}

void check(int result, const char* what) {
    if (result != 0) fail(Kind::device, "[CUDA] ", what, " failed: ", nvrtc().nvrtcGetErrorString(result));
}

/// A program, given back at the end.
class Program {
  public:
    explicit Program(const std::string& text) {
        const char *names[n_carried], *texts[n_carried];
        for (int i = 0; i < n_carried; ++i) names[i] = carried()[i].name, texts[i] = carried()[i].text;
        check(nvrtc().nvrtcCreateProgram(&program_, text.c_str(), "kernel.cu", n_carried, texts, names),
              "to make a program");
    }
    ~Program() { library_.nvrtcDestroyProgram(&program_); }
    Program(const Program&) = delete;

    void compile(const std::string& architecture) {
        const std::string target = "--gpu-architecture=" + architecture;
        // Without contraction, an element has the same bits in a fused kernel and on its own.
        const char* const options[] = {target.c_str(), "--std=c++20", "-default-device", "-w", "-fmad=false"};
        if (nvrtc().nvrtcCompileProgram(program_, int(std::size(options)), options) == 0) return;
        fail(Kind::device, "[CUDA] a kernel does not compile for ", architecture, ":\n",
             read(nvrtc().nvrtcGetProgramLogSize, nvrtc().nvrtcGetProgramLog));
    }

    std::string read(int (*size_of)(void*, size_t*), int (*get)(void*, char*)) {
        size_t size = 0;
        check(size_of(program_, &size), "to read a compiled kernel");
        std::string result(size, '\0');
        check(get(program_, result.data()), "to read a compiled kernel");
        return result;
    }

  private:
    const Nvrtc& library_ = nvrtc();
    void* program_ = nullptr;
};

std::string& kernel_folder() {
    static std::string path;
    return path;
}

struct Counts {
    std::atomic<int64_t> compiled{0}, loaded{0};
} counts;

/// FNV-1a of 64 bits, from another start for each half of a name.
uint64_t hash_of(const std::string& bytes, uint64_t hash) {
    for (const char byte : bytes) hash = (hash ^ uint8_t(byte)) * 0x100000001b3ull;
    return hash;
}

std::string file_name(const std::string& text, const std::string& architecture) {
    std::string all = tensora::text(architecture, '/', nvrtc().major, '.', nvrtc().minor, '/', text);
    for (int i = 0; i < n_carried; ++i) all += carried()[i].text;
    char name[64];
    std::snprintf(name, sizeof(name), "%016llx%016llx.cubin",
                  static_cast<unsigned long long>(hash_of(all, 0xcbf29ce484222325ull)),
                  static_cast<unsigned long long>(hash_of(all, 0x9ae16a3b2f90404full)));
    return name;
}

std::string kept_code(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// A process that reads at the same time finds the whole file or none; a folder that cannot be written is
/// no error.
void keep_code(const std::filesystem::path& path, const std::string& code) {
    std::error_code ignored;
    std::filesystem::create_directories(path.parent_path(), ignored);
    const std::string partial = text(path.string(), '.', ::getpid(), ".partial");
    std::ofstream file(partial, std::ios::binary);
    file.write(code.data(), std::streamsize(code.size()));
    file.close();
    if (file)
        std::filesystem::rename(partial, path, ignored);
    else
        std::filesystem::remove(partial, ignored);
}

/// Machine code of a text, and its file in the folder of kernels.
struct Code {
    std::string code;
    std::filesystem::path path;  ///< empty: there is no folder
    bool loaded = false;         ///< from the file
};

Code compiled_code(const std::string& text, const std::string& architecture, std::filesystem::path path) {
    std::string code = compile(text, architecture);
    ++counts.compiled;
    if (!path.empty()) keep_code(path, code);
    return {std::move(code), std::move(path), false};
}

Code code_for(const std::string& text, const std::string& architecture) {
    if (kernel_folder().empty()) return compiled_code(text, architecture, {});
    std::filesystem::path path = std::filesystem::path(kernel_folder()) / file_name(text, architecture);
    std::string code = kept_code(path);
    if (code.empty()) return compiled_code(text, architecture, std::move(path));
    ++counts.loaded;
    return {std::move(code), std::move(path), true};
}

/// The name of a kernel in the code, as profilers show it.
std::string entry_name(const Source& source) {
    std::string name = text("ts_", source.name);
    for (char& letter : name)
        if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
    return name;
}

/// A file that does not load is damaged, or of another driver, and is compiled again.
Function load_kernel(int device, const std::string& text, const std::string& name) {
    const Properties& properties = cuda::properties(device);
    const std::string architecture = nvrtc().architecture_for(10 * properties.major + properties.minor);
    const Code code = code_for(text, architecture);
    try {
        return load_function(device, code.code, name.c_str());
    } catch (const Error&) {
        if (!code.loaded) throw;
    }
    return load_function(device, compiled_code(text, architecture, code.path).code, name.c_str());
}

/// A kernel on a device. Two threads that need it at the same time compile it once.
struct LoadedKernel {
    std::atomic<Function> function{nullptr};
    std::mutex mutex;
};

LoadedKernel& loaded_kernel(int device, const std::string& text) {
    static std::mutex mutex;
    static auto* const all = new std::unordered_map<std::string, LoadedKernel>;
    std::string key = tensora::text(device, '\n', text);
    const std::lock_guard lock(mutex);
    return (*all)[std::move(key)];
}

void check_arguments(const Source& source, const Arguments& arguments) {
    constexpr size_t max_bytes = 4096;  // before CUDA 12.1, and before compute capability 7.0
    if (arguments.size() > max_bytes)
        fail(Kind::not_implemented, "[", source.name, "] ", arguments.size(),
             " bytes of arguments of a CUDA kernel, which takes ", max_bytes,
             "; use fewer tensors or axes in one kernel");
}

}  // namespace

const char* type_name(DType dtype) {
    constexpr const char* names[n_dtypes] = {"Bool",   "uint8_t", "uint16_t", "uint32_t", "uint64_t",
                                             "int8_t", "int16_t", "int32_t",  "int64_t",  "Half",
                                             "BFloat", "float",   "double",   "C64",      "C128"};
    return names[int(dtype)];
}

std::string carried_source(const std::string& name) {
    for (int i = 0; i < n_carried; ++i)
        if (name == carried()[i].name) return carried()[i].text;
    return "";
}

std::vector<std::string> carried_names() {
    std::vector<std::string> names;
    for (int i = 0; i < n_carried; ++i) names.emplace_back(carried()[i].name);
    return names;
}

std::string full_text(const Source& source) {
    return text("#define TENSORA_DEVICE\n#include \"", source.header,
                "\"\nnamespace accelera::tensora::device {\n", source.declarations,
                "\nextern \"C\" __global__ void __launch_bounds__(256) ", entry_name(source),
                "(const Arguments a) {\n", source.body, "\n}\n}\n");
}

std::string compile(const std::string& text, const std::string& architecture) {
    Program program(text);
    program.compile(architecture);
    if (architecture.rfind("compute_", 0) == 0)
        return program.read(nvrtc().nvrtcGetPTXSize, nvrtc().nvrtcGetPTX);
    return program.read(nvrtc().nvrtcGetCUBINSize, nvrtc().nvrtcGetCUBIN);
}

void set_kernel_folder(const std::string& path) { kernel_folder() = path; }
KernelCounts kernel_counts() { return {counts.compiled, counts.loaded}; }

void run_kernel(int device, const Source& source, const Launch& launch_as, Arguments& arguments) {
    check_arguments(source, arguments);
    const std::string text = full_text(source);
    LoadedKernel& kernel = loaded_kernel(device, text);
    Function function = kernel.function.load(std::memory_order_acquire);
    if (!function) {
        if (Watch::is_capturing())
            fail(Kind::device, "[CUDA] ", source.name, " is not loaded before it goes to a graph");
        const InterpreterReleased
            released;  // before the lock: who holds it needs the interpreter's at the end
        const std::lock_guard lock(kernel.mutex);
        function = kernel.function.load();
        if (!function) kernel.function = function = load_kernel(device, text, entry_name(source));
    }
    launch(device, function, source.name, launch_as, arguments.data());
}

}  // namespace accelera::tensora::cuda
