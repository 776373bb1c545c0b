// NVRTC, the compiler of CUDA that is loaded while running, and the kernels that it made.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <unordered_map>

#include "tensora/cuda/kernels.h"

// The sources for the device, as text in the library.
#ifdef __linux__
#define CARRIED(symbol, path)                                                                              \
    asm(".pushsection .rodata\n.hidden tensora_" #symbol "\n.global tensora_" #symbol "\ntensora_" #symbol \
        ":\n.incbin \"" TENSORA_SOURCES path "\"\n.byte 0\n.popsection\n");                                \
    extern "C" const char tensora_##symbol[];
#else
#define CARRIED(symbol, path) static const char tensora_##symbol[] = "";
#endif
CARRIED(element, "tensora/core/element.h")
CARRIED(math, "tensora/kernels/math.h")
CARRIED(scalar, "tensora/kernels/scalar.h")
CARRIED(formulas, "tensora/kernels/formulas.def")
CARRIED(device_math, "tensora/cuda/math.cuh")
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
    static const Carried all[n_carried] = {
        {"tensora/core/element.h", tensora_element},    {"tensora/kernels/math.h", tensora_math},
        {"tensora/kernels/scalar.h", tensora_scalar},   {"tensora/kernels/formulas.def", tensora_formulas},
        {"tensora/cuda/math.cuh", tensora_device_math}, {"tensora/cuda/elements.cuh", tensora_elements},
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
    const char* (*nvrtcGetErrorString)(Result);

    Nvrtc() {
        library = open_library({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
        if (!library) {
            absence =
                "CUDA's run-time compiler (libnvrtc.so) is not found; install the CUDA toolkit, or pip "
                "install "
                "nvidia-cuda-nvrtc";
            return;
        }
#define FIND(name) find(name, #name)
        FIND(nvrtcVersion), FIND(nvrtcCreateProgram), FIND(nvrtcCompileProgram), FIND(nvrtcGetCUBINSize);
        FIND(nvrtcGetCUBIN), FIND(nvrtcGetPTXSize), FIND(nvrtcGetPTX), FIND(nvrtcGetProgramLogSize);
        FIND(nvrtcGetProgramLog), FIND(nvrtcDestroyProgram), FIND(nvrtcGetErrorString);
#undef FIND
    }

  private:
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
    ~Program() { nvrtc().nvrtcDestroyProgram(&program_); }
    Program(const Program&) = delete;

    void compile(const std::string& architecture) {
        const std::string target = "--gpu-architecture=" + architecture;
        const char* const options[] = {target.c_str(), "--std=c++20", "-default-device", "-w"};
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
    int major = 0, minor = 0;
    nvrtc().nvrtcVersion(&major, &minor);
    std::string all = tensora::text(architecture, '/', major, '.', minor, '/', text);
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

std::string code_for(const std::string& text, const std::string& architecture) {
    if (kernel_folder().empty()) return ++counts.compiled, compile(text, architecture);
    const std::filesystem::path path = std::filesystem::path(kernel_folder()) / file_name(text, architecture);
    std::string code = kept_code(path);
    if (!code.empty()) return ++counts.loaded, code;
    code = compile(text, architecture);
    ++counts.compiled;
    keep_code(path, code);
    return code;
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
                "\nextern \"C\" __global__ void __launch_bounds__(256) kernel(const Arguments a) {\n",
                source.body, "\n}\n}\n");
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
    static std::mutex mutex;
    static auto* const known = new std::unordered_map<std::string, Function>;
    const std::string text = full_text(source), key = tensora::text(device, '\n', text);
    Function function = nullptr;
    {
        const std::lock_guard lock(mutex);
        Function& kept = (*known)[key];
        if (!kept) {
            const Properties& properties = cuda::properties(device);
            const std::string architecture = tensora::text("sm_", properties.major, properties.minor);
            kept = load_function(device, code_for(text, architecture), "kernel");
        }
        function = kept;
    }
    launch(device, function, source.name, launch_as, arguments.data());
}

}  // namespace accelera::tensora::cuda
