// The CUDA driver, NVRTC and cuBLAS on the CPU, as far as accelera.tensora calls them: two devices whose
// memory the CPU can touch only while a kernel or a copy runs. Kernels are compiled by g++ (see device.h).
// One source, compiled once for each of the three libraries.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

extern "C" {

#ifdef EMULATED_DRIVER

using Address = unsigned long long;
constexpr int success = 0, invalid_value = 1, out_of_memory = 2, not_initialized = 3, invalid_context = 201,
              not_found = 500, illegal_address = 700, invalid_image = 200, invalid_handle = 400,
              capture_unsupported = 900, capture_invalidated = 901;
constexpr int n_devices = 2;
constexpr size_t page = 4096;

namespace {

struct Block {
    size_t size = 0, mapped = 0;
    char* base = nullptr;
    int device = 0;
};
using Work = std::function<int()>;
struct Stream {
    int device;
    bool capturing = false, valid = true;
    std::vector<Work> captured;
};
struct Graph {
    std::vector<Work> nodes;
};
struct Event {
    bool recorded = false;
};
struct Module {
    void* library;
};
struct Function {
    void (*launch)(void (*)(void*), void*, unsigned, unsigned, bool);
    void (*body)(void*);
    size_t parameter_bytes;
    bool barriers;
};

std::recursive_mutex mutex;
std::map<Address, Block> blocks;
size_t held[n_devices] = {0, 0};
bool initialized = false;
thread_local int current = 0;  // context: device + 1
std::set<void*> streams, events, graphs;
int captures = 0;  // that go on
int launches = 0;  // of graphs

size_t device_bytes() {
    const char* const given = std::getenv("EMULATED_CUDA_BYTES");
    return given ? std::strtoull(given, nullptr, 10) : size_t(1) << 30;
}

/// The blocks that the addresses lie in can be touched while this lives, and no others. Words that are no
/// addresses are passed over: a kernel's arguments are given as they are.
class Opened {
  public:
    explicit Opened(std::span<const Address> words) {
        mutex.lock();
        for (const Address word : words) {
            auto place = blocks.upper_bound(word);
            if (place == blocks.begin()) continue;
            const Block& block = (--place)->second;
            if (word >= place->first + block.size) continue;
            if (mprotect(block.base, block.mapped, PROT_READ | PROT_WRITE) == 0) open_.push_back(&block);
        }
    }
    Opened(std::initializer_list<Address> words) : Opened(std::span(words.begin(), words.size())) {}
    ~Opened() {
        for (const Block* const block : open_) mprotect(block->base, block->mapped, PROT_NONE);
        mutex.unlock();
    }
    Opened(const Opened&) = delete;

  private:
    std::vector<const Block*> open_;
};

bool inside(Address at, size_t n) {
    auto place = blocks.upper_bound(at);
    if (place == blocks.begin()) return n == 0;
    --place;
    return at + n <= place->first + place->second.size;
}

bool known_stream(void* stream) { return !stream || streams.count(stream); }

bool is_capturing(void* stream) { return streams.count(stream) && static_cast<Stream*>(stream)->capturing; }

/// What a stream that is captured does not allow, after which nothing comes of its graph. Stricter than a
/// driver: copies from and to the CPU, and allocations, would be nodes there.
int refuse(void* stream) {
    if (is_capturing(stream)) static_cast<Stream*>(stream)->valid = false;
    return capture_unsupported;
}

}  // namespace

/// Work of a stream: done now, or when the graph that the stream goes to is launched. Takes it over.
int emulated_enqueue(void* stream, std::function<int()>* given) {
    Work work = std::move(*given);
    delete given;
    if (!is_capturing(stream)) return work();
    static_cast<Stream*>(stream)->captured.push_back(std::move(work));
    return success;
}

int cuInit(unsigned) {
    initialized = true;
    return success;
}
int cuDriverGetVersion(int* version) { return *version = 13000, success; }
int cuDeviceGetCount(int* n) { return initialized ? (*n = n_devices, success) : not_initialized; }
int cuDeviceGet(int* device, int i) {
    if (i < 0 || i >= n_devices) return invalid_value;
    return *device = i, success;
}
int cuDeviceGetName(char* name, int n, int device) {
    std::snprintf(name, size_t(n), "Emulated device %d", device);
    return success;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 4 : 0;
    return success;
}
int cuDeviceTotalMem_v2(size_t* n, int) { return *n = device_bytes(), success; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = reinterpret_cast<void*>(intptr_t(device + 1));
    return success;
}
int cuCtxSetCurrent(void* context) { return current = int(intptr_t(context)), success; }
int cuCtxGetCurrent(void** context) {
    *context = reinterpret_cast<void*>(intptr_t(current));
    return success;
}
int cuCtxSynchronize() { return captures ? capture_unsupported : current ? success : invalid_context; }
int cuMemGetInfo_v2(size_t* free, size_t* total) {
    if (!current) return invalid_context;
    *total = device_bytes();
    *free = *total - held[current - 1];
    return success;
}
int cuDeviceGetDefaultMemPool(void** pool, int device) {
    *pool = reinterpret_cast<void*>(intptr_t(device + 1));
    return success;
}
int cuMemPoolSetAttribute(void*, int, void*) { return success; }
int cuMemPoolGetAttribute(void* pool, int, void* value) {
    const uint64_t n = held[intptr_t(pool) - 1];
    std::memcpy(value, &n, 8);
    return success;
}
int cuMemPoolTrimTo(void*, size_t) { return captures ? capture_unsupported : success; }

int cuMemAllocAsync(Address* address, size_t n, void* stream) {
    const std::lock_guard lock(mutex);
    if (!current) return invalid_context;
    if (!known_stream(stream)) return invalid_handle;
    if (is_capturing(stream)) return refuse(stream);
    if (n == 0) return invalid_value;
    if (held[current - 1] + n > device_bytes()) return out_of_memory;
    Block block;
    block.size = n;
    block.mapped = (n + page - 1) / page * page;
    block.device = current - 1;
    // A page behind it that nobody may touch: what runs over the end faults.
    char* const all = static_cast<char*>(
        mmap(nullptr, block.mapped + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (all == MAP_FAILED) return out_of_memory;
    block.base = all;
    *address = Address(all + block.mapped - (n + 15) / 16 * 16);
    blocks[*address] = block;
    held[block.device] += n;
    // As on a device: the contents are anything.
    mprotect(block.base, block.mapped, PROT_READ | PROT_WRITE);
    if (n < size_t(1) << 22) std::memset(reinterpret_cast<void*>(*address), 0xa5, n);
    mprotect(block.base, block.mapped, PROT_NONE);
    return success;
}
int cuMemFreeAsync(Address address, void* stream) {
    const std::lock_guard lock(mutex);
    if (!current) return invalid_context;
    if (!known_stream(stream)) return invalid_handle;
    if (is_capturing(stream)) return refuse(stream);
    const auto place = blocks.find(address);
    if (place == blocks.end()) return invalid_value;
    held[place->second.device] -= place->second.size;
    munmap(place->second.base, place->second.mapped + page);
    blocks.erase(place);
    return success;
}
int cuMemAllocHost_v2(void** memory, size_t n) {
    if (!current) return invalid_context;
    if (std::getenv("EMULATED_CUDA_NO_HOST_MEMORY")) return out_of_memory;
    return (*memory = std::malloc(n)) ? success : out_of_memory;
}
int cuMemFreeHost(void* memory) { return std::free(memory), success; }
int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t n, void* stream) {
    if (!current) return invalid_context;
    if (is_capturing(stream)) return refuse(stream);
    const Opened opened{to};
    if (!inside(to, n) || !known_stream(stream)) return invalid_value;
    std::memcpy(reinterpret_cast<void*>(to), from, n);
    return success;
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t n, void* stream) {
    if (!current) return invalid_context;
    if (is_capturing(stream)) return refuse(stream);
    const Opened opened{from};
    if (!inside(from, n) || !known_stream(stream)) return invalid_value;
    std::memcpy(to, reinterpret_cast<void*>(from), n);
    return success;
}
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, void* stream) {
    if (!current) return invalid_context;
    if (!known_stream(stream)) return invalid_value;
    return emulated_enqueue(stream, new Work([=] {
                                const Opened opened{to, from};
                                if (!inside(to, n) || !inside(from, n)) return invalid_value;
                                std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n);
                                return success;
                            }));
}
int cuMemsetD8Async(Address to, unsigned char value, size_t n, void* stream) {
    if (!current) return invalid_context;
    if (!known_stream(stream)) return invalid_value;
    return emulated_enqueue(stream, new Work([=] {
                                const Opened opened{to};
                                if (!inside(to, n)) return invalid_value;
                                std::memset(reinterpret_cast<void*>(to), value, n);
                                return success;
                            }));
}

int cuStreamCreate(void** stream, unsigned) {
    if (!current) return invalid_context;
    streams.insert(*stream = new Stream{current - 1});
    return success;
}
int cuStreamSynchronize(void* stream) {
    return is_capturing(stream) ? refuse(stream) : known_stream(stream) ? success : invalid_handle;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    if (is_capturing(stream)) return refuse(stream);
    // 1 and 2 are the default streams.
    const bool usual = intptr_t(stream) <= 2;
    return (usual || streams.count(stream)) && events.count(event) ? success : invalid_handle;
}
int cuEventCreate(void** event, unsigned) {
    if (!current) return invalid_context;
    events.insert(*event = new Event);
    return success;
}
int cuEventRecord(void* event, void* stream) {
    if (is_capturing(stream)) return refuse(stream);
    return events.count(event) && known_stream(stream) ? success : invalid_handle;
}
int cuEventDestroy_v2(void* event) {
    if (!events.erase(event)) return invalid_handle;
    delete static_cast<Event*>(event);
    return success;
}

/// A "cubin" is the path of a shared library, and whether its kernel has barriers.
int cuModuleLoadData(void** module, const void* image) {
    if (!current) return invalid_context;
    if (captures) return capture_unsupported;
    void* const library = dlopen(static_cast<const char*>(image) + 1, RTLD_NOW | RTLD_LOCAL);
    if (!library) return std::fprintf(stderr, "%s\n", dlerror()), invalid_image;
    auto* const function = new Function;
    function->launch = reinterpret_cast<decltype(function->launch)>(dlsym(library, "emulated_launch"));
    function->body = reinterpret_cast<decltype(function->body)>(dlsym(library, "emulated_kernel"));
    function->parameter_bytes = *static_cast<size_t*>(dlsym(library, "emulated_parameter_bytes"));
    function->barriers = *static_cast<const char*>(image) == 'b';
    *module = function;
    return success;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = module;
    return std::strcmp(name, "kernel") == 0 ? success : not_found;
}
int cuLaunchKernel(void* given, unsigned blocks_x, unsigned y, unsigned z, unsigned threads,
                   unsigned threads_y, unsigned threads_z, unsigned, void* stream, void** parameters,
                   void**) {
    if (!current) return invalid_context;
    if (!known_stream(stream)) return invalid_handle;
    if (!blocks_x || y != 1 || z != 1 || !threads || threads > 1024 || threads_y != 1 || threads_z != 1)
        return invalid_value;
    const auto& function = *static_cast<Function*>(given);
    const char* const first = static_cast<const char*>(parameters[0]);
    // As the driver does: the arguments are copied now, the kernel may run later.
    std::vector<Address> argument(function.parameter_bytes / sizeof(Address) + 1);
    std::memcpy(argument.data(), first, function.parameter_bytes);
    return emulated_enqueue(stream, new Work([=]() mutable {
                                const Opened opened{std::span<const Address>(argument)};
                                function.launch(function.body, argument.data(), blocks_x, threads,
                                                function.barriers);
                                return success;
                            }));
}

/// So many captures come to nothing from now on.
int emulated_spoiled_captures = 0;

int cuStreamBeginCapture_v2(void* stream, int) {
    if (!current) return invalid_context;
    if (!streams.count(stream) || is_capturing(stream)) return capture_unsupported;
    auto& one = *static_cast<Stream*>(stream);
    one.capturing = one.valid = true;
    ++captures;
    return success;
}
int cuStreamEndCapture(void* stream, void** graph) {
    *graph = nullptr;
    if (!is_capturing(stream)) return invalid_value;
    auto& one = *static_cast<Stream*>(stream);
    one.capturing = false;
    --captures;
    std::vector<Work> nodes = std::exchange(one.captured, {});
    if (!one.valid || (emulated_spoiled_captures && emulated_spoiled_captures--)) return capture_invalidated;
    graphs.insert(*graph = new Graph{std::move(nodes)});
    return success;
}
#ifndef WITHOUT_GRAPHS
int cuGraphInstantiateWithFlags(void** ready, void* graph, unsigned long long) {
    if (!graphs.count(graph)) return invalid_handle;
    graphs.insert(*ready = new Graph(*static_cast<Graph*>(graph)));
    return success;
}
int cuGraphLaunch(void* ready, void* stream) {
    if (!current) return invalid_context;
    if (!graphs.count(ready) || !known_stream(stream)) return invalid_handle;
    if (is_capturing(stream)) return refuse(stream);
    ++launches;
    for (const Work& work : static_cast<Graph*>(ready)->nodes)
        if (const int result = work()) return result;
    return success;
}
#endif
int emulated_graph_launches() { return launches; }
int cuGraphDestroy(void* graph) {
    if (!graphs.erase(graph)) return invalid_handle;
    delete static_cast<Graph*>(graph);
    return success;
}
int cuGraphExecDestroy(void* ready) { return cuGraphDestroy(ready); }
int cuGetErrorName(int result, const char** name) {
    *name = result == out_of_memory         ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == capture_unsupported ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                                            : "CUDA_ERROR_INVALID_VALUE";
    return success;
}
int cuGetErrorString(int result, const char** words) {
    *words = result == out_of_memory ? "out of memory" : "invalid argument";
    return success;
}

#endif
#ifdef EMULATED_COMPILER

namespace {
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
    result = std::system(("[ -d " + shared + " ] || (g++ -std=c++20 -O0 -w -fPIC -I" + own +
                          " -x c++-header " + own + "/all.h -o " + own + "/all.h.gch 2> " + own +
                          ".log && mv -T " + own + " " + shared + " 2> /dev/null; [ -d " + shared + " ])")
                             .c_str());
    std::ifstream log(own + ".log");
    program.log.assign(std::istreambuf_iterator<char>(log), {});
    return result == 0;
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
int nvrtcCompileProgram(void* given, int, const char* const*) {
    auto& program = *static_cast<Program*>(given);
    if (!prepare(program)) return 6;
    char number[32];
    std::snprintf(number, sizeof(number), "%016zx", std::hash<std::string>()(program.text));
    const std::string path = folder() + "/" + number, library = path + ".so";
    if (access(library.c_str(), R_OK) != 0) {
        const std::string partial = path + "." + std::to_string(getpid());
        write_text(
            partial + ".cpp",
            program.text +
                "\nnamespace accelera::tensora::device { extern \"C\" void emulated_kernel(void* a) {\n"
                "kernel(*static_cast<const Arguments*>(a)); }\n"
                "extern \"C\" { unsigned long emulated_parameter_bytes = sizeof(Arguments); } }\n");
        // What it calls of the C library is in this process: a linker that need not read it is done in a
        // tenth of the time.
        const std::string command = "g++ -std=c++20 -O0 -w -shared -nostdlib -pipe -fPIC -I" + folder() +
                                    "/headers -include all.h " + partial + ".cpp -o " + partial + ".so 2> " +
                                    partial + ".log";
        if (std::system(command.c_str()) != 0) {
            std::ifstream log(partial + ".log");
            program.log.assign(std::istreambuf_iterator<char>(log), {});
            return 6;
        }
        std::rename((partial + ".so").c_str(), library.c_str());
    }
    const bool barriers = program.text.find("cuda/rows.cuh") != std::string::npos;
    program.code = (barriers ? "b" : "-") + library;
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

#endif
#ifdef EMULATED_BLAS

int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t n, void* stream);
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t n, void* stream);
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

struct Handle {
    void* stream = nullptr;
};

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
    Matrix(const void* at, int type, int operation, int64_t rows, int64_t columns, int64_t leading)
        : type(type), operation(operation), leading(leading) {
        const int64_t n = operation ? rows : columns, m = operation ? columns : rows;
        data.resize(size_t((n - 1) * leading + m) * size_of(type));
        cuMemcpyDtoHAsync_v2(data.data(), reinterpret_cast<unsigned long long>(at), data.size(), nullptr);
    }
    Number of(int64_t i, int64_t j) const {
        const int64_t at = operation ? i * leading + j : j * leading + i;
        const Number value = load(data.data() + size_t(at) * size_of(type), type);
        return operation == 2 ? std::conj(value) : value;
    }
};

}  // namespace

int cublasCreate_v2(void** handle) { return *handle = new Handle, 0; }
int cublasSetStream_v2(void* handle, void* stream) {
    return static_cast<Handle*>(handle)->stream = stream, 0;
}
int cublasGemmStridedBatchedEx(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
                               const void* a, int a_type, int lda, long long a_step, const void* b,
                               int b_type, int ldb, long long b_step, const void* beta, void* c, int c_type,
                               int ldc, long long c_step, int batch, int compute, int) {
    if (lda < (op_a ? k : m) || ldb < (op_b ? n : k) || ldc < m || m < 0 || n < 0 || k < 0) return 7;
    const bool wide = compute == 70;
    const double scale = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
    const double factor = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
    const auto multiply = [=] {
        for (int i = 0; i < batch; ++i) {
            const Matrix x(static_cast<const char*>(a) + i * a_step * int64_t(size_of(a_type)), a_type, op_a,
                           m, k, lda);
            const Matrix y(static_cast<const char*>(b) + i * b_step * int64_t(size_of(b_type)), b_type, op_b,
                           k, n, ldb);
            char* const at = static_cast<char*>(c) + i * c_step * int64_t(size_of(c_type));
            std::vector<char> out(size_t(int64_t(n - 1) * ldc + m) * size_of(c_type));
            cuMemcpyDtoHAsync_v2(out.data(), reinterpret_cast<unsigned long long>(at), out.size(), nullptr);
            for (int col = 0; col < n; ++col)
                for (int row = 0; row < m; ++row) {
                    Number sum = 0;
                    for (int l = 0; l < k; ++l) sum += x.of(row, l) * y.of(l, col);
                    char* const place = out.data() + size_t(int64_t(col) * ldc + row) * size_of(c_type);
                    store(place, c_type, factor * sum + (scale ? scale * load(place, c_type) : Number(0)));
                }
            cuMemcpyHtoDAsync_v2(reinterpret_cast<unsigned long long>(at), out.data(), out.size(), nullptr);
        }
        return 0;
    };
    return emulated_enqueue(static_cast<Handle*>(handle)->stream, new std::function<int()>(multiply));
}

#endif

}  // extern "C"
