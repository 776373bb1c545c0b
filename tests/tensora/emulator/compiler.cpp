// NVRTC on the CPU, as far as accelera.tensora calls it: kernels are compiled by g++ (see device.h).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

extern "C" {

namespace {
constexpr int compilation_failed = 6;
constexpr const char* alignment_checks = "-fsanitize=alignment -fsanitize-undefined-trap-on-error ";

struct Program {
    std::string text, log, code;
    std::vector<std::pair<std::string, std::string>> headers;
};
std::string folder() { return std::getenv("EMULATED_CUDA_FOLDER"); }
void write_text(const std::string& path, const std::string& text) {
    const size_t slash = path.rfind('/');
    if (std::system(("mkdir -p " + path.substr(0, slash)).c_str()) != 0) return;
    std::ofstream(path) << text;
}
/// All headers of the kernels as one that is compiled beforehand, made by the first process that comes here.
bool prepare(Program& program) {
    static int result = -1;
    if (result >= 0) return result == 0;
    const std::string own = folder() + "/headers." + std::to_string(getpid()), shared = folder() + "/headers";
    std::string all =
        "#include \"" + std::string(std::getenv("EMULATED_CUDA_HEADER")) + "\"\n#define TENSORA_DEVICE\n";
    for (const auto& [name, text] : program.headers) {
        write_text(own + "/" + name, text);
        if (name.find(".cuh") != std::string::npos) all += "#include \"" + name + "\"\n";
    }
    write_text(own + "/all.h", all);
    result = std::system(("[ -d " + shared + " ] || (g++ -std=c++20 -O0 -w -fPIC " + alignment_checks + "-I" +
                          own + " -x c++-header " + own + "/all.h -o " + own + "/all.h.gch 2> " + own +
                          ".log && mv -T " + own + " " + shared + " 2> /dev/null; [ -d " + shared + " ])")
                             .c_str());
    std::ifstream log(own + ".log");
    program.log.assign(std::istreambuf_iterator<char>(log), {});
    return result == 0;
}
/// "sm_90" of an option "--gpu-architecture=sm_90", or "compute_90".
int architecture_of(const std::string& option) {
    return std::atoi(option.substr(option.find('_') + 1).c_str());
}

/// Name of the function that a text declares as a kernel.
std::string entry_name(const std::string& text) {
    const std::string before = "__launch_bounds__(256) ";
    const size_t begin = text.rfind(before) + before.size();
    return text.substr(begin, text.find('(', begin) - begin);
}

std::string emulated_options;
}  // namespace

/// Architectures that it compiles for; tests may set another last one.
int emulated_architectures[] = {75, 80, 90};

const char* emulated_compile_options() { return emulated_options.c_str(); }
int nvrtcGetNumSupportedArchs(int* n) { return *n = 3, 0; }
int nvrtcGetSupportedArchs(int* to) {
    return std::memcpy(to, emulated_architectures, sizeof(emulated_architectures)), 0;
}

namespace {
bool is_supported(int architecture) {
    for (const int one : emulated_architectures)
        if (one == architecture) return true;
    return false;
}
}  // namespace

int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
int nvrtcCreateProgram(void** program, const char* text, const char*, int n, const char* const* texts,
                       const char* const* names) {
    auto* const made = new Program{text, "", "", {}};
    for (int i = 0; i < n; ++i) made->headers.emplace_back(names[i], texts[i]);
    *program = made;
    return 0;
}
int nvrtcCompileProgram(void* handle, int n, const char* const* options) {
    auto& program = *static_cast<Program*>(handle);
    emulated_options.clear();
    for (int i = 0; i < n; ++i) emulated_options += std::string(options[i]) + " ";
    if (!is_supported(architecture_of(options[0]))) {
        program.log = "nvrtc: error: invalid value for --gpu-architecture (-arch)";
        return compilation_failed;
    }
    if (!prepare(program)) return compilation_failed;
    const std::string name = entry_name(program.text);
    char number[32];
    std::snprintf(number, sizeof(number), "%016zx", std::hash<std::string>()(program.text));
    const std::string path = folder() + "/" + number, library = path + ".so";
    if (access(library.c_str(), R_OK) != 0) {
        const std::string partial = path + "." + std::to_string(getpid());
        write_text(
            partial + ".cpp",
            program.text +
                "\nnamespace accelera::tensora::device { extern \"C\" void emulated_kernel(void* a) {\n" +
                name +
                "(*static_cast<const Arguments*>(a)); }\n"
                "extern \"C\" { unsigned long emulated_parameter_bytes = sizeof(Arguments); } }\n");
        // This process has loaded the C library already: without reading it again, the linker ends in a
        // tenth of the time.
        const std::string command = std::string("g++ -std=c++20 -O0 -w -shared -nostdlib -pipe -fPIC ") +
                                    alignment_checks + "-I" + folder() + "/headers -include all.h " +
                                    partial + ".cpp -o " + partial + ".so 2> " + partial + ".log";
        if (std::system(command.c_str()) != 0) {
            std::ifstream log(partial + ".log");
            program.log.assign(std::istreambuf_iterator<char>(log), {});
            return compilation_failed;
        }
        std::rename((partial + ".so").c_str(), library.c_str());
    }
    const bool barriers = program.text.find("cuda/rows.cuh") != std::string::npos;
    program.code = (barriers ? "b" : "-") + name + ":" + library;
    return 0;
}
int nvrtcGetCUBINSize(void* program, size_t* n) {
    return *n = static_cast<Program*>(program)->code.size() + 1, 0;
}
int nvrtcGetCUBIN(void* program, char* to) {
    return std::strcpy(to, static_cast<Program*>(program)->code.c_str()), 0;
}
int nvrtcGetPTXSize(void* program, size_t* n) { return nvrtcGetCUBINSize(program, n); }
int nvrtcGetPTX(void* program, char* to) { return nvrtcGetCUBIN(program, to); }
int nvrtcGetProgramLogSize(void* program, size_t* n) {
    return *n = static_cast<Program*>(program)->log.size() + 1, 0;
}
int nvrtcGetProgramLog(void* program, char* to) {
    return std::strcpy(to, static_cast<Program*>(program)->log.c_str()), 0;
}
int nvrtcDestroyProgram(void** program) { return delete static_cast<Program*>(*program), 0; }
const char* nvrtcGetErrorString(int) { return "compilation"; }

}  // extern "C"
