// Interception built for one version of torch: kernels in C++ before torch's own. Python loads it by ctypes.
#include <ATen/Operators.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <vector>

#include "torch/allocator.h"
#include "torch/interception.h"

namespace accelera {
namespace {

using Enter = void (*)(torch::Library&, int, c10::DispatchKey);

struct Entry {
    Enter enter;
    Place place;
};

const std::map<std::string, Entry>& operators() {
    static const std::map<std::string, Entry> all{
#define OPERATOR(place, rule, op)                                  \
    {Interception<at::_ops::op, Place::place, Rule::rule>::name(), \
     {&Interception<at::_ops::op, Place::place, Rule::rule>::enter, Place::place}},
#include "torch/operators.def"
#undef OPERATOR
    };
    return all;
}

// Never destroyed: at exit the dispatcher may be gone before us.
std::vector<std::unique_ptr<torch::Library>>& libraries() {
    static auto& all = *new std::vector<std::unique_ptr<torch::Library>>;
    return all;
}

// Torch warns of every kernel that is replaced; here that is the purpose.
struct Quiet : c10::WarningHandler {
    void process(const c10::Warning&) override {}
};

// The autograd key comes first: once there is a kernel at the backend's, torch composes no other there.
void enter(torch::Library& library, const Entry& entry, int slot, const std::string& backend) {
    if (entry.place == Place::AboveAutograd)
        entry.enter(library, slot, c10::parseDispatchKey("Autograd" + backend));
    entry.enter(library, slot, c10::parseDispatchKey(backend));
}

void enter_all(const char* const* names, int count, const char* accelerator) {
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    if (*accelerator) InForce::accelerator = c10::toBackendComponent(c10::parseDispatchKey(accelerator));
    auto library =
        std::make_unique<torch::Library>(torch::Library::IMPL, "aten", std::nullopt, __FILE__, __LINE__);
    for (int i = 0; i < count; ++i) {
        const auto& entry = operators().at(names[i]);
        enter(*library, entry, 0, "CPU");
        if (*accelerator) enter(*library, entry, 1, accelerator);
    }
    libraries().push_back(std::move(library));
}

}  // namespace
}  // namespace accelera

// What Python calls.
#define ACCELERA_EXPORT extern "C" __attribute__((visibility("default")))

// Names of the operators, one in a line.
ACCELERA_EXPORT const char* accelera_operators() {
    static const std::string text = [] {
        std::string lines;
        for (const auto& [name, _] : accelera::operators()) lines += name + "\n";
        return lines;
    }();
    return text.c_str();
}

ACCELERA_EXPORT void accelera_set_thresholds(int64_t least_bytes, int64_t least_size) {
    accelera::InForce::least_bytes = least_bytes;
    accelera::InForce::least_size = least_size;
}

ACCELERA_EXPORT void accelera_set_level(int level) { accelera::passing_level = level; }

// Put our kernels before torch's; `accelerator` is its dispatch key or "". Returns what went wrong, or null.
ACCELERA_EXPORT const char* accelera_register(const char* const* names, int count, const char* accelerator) {
    static thread_local std::string fault;
    try {
        accelera::enter_all(names, count, accelerator);
        return nullptr;
    } catch (const std::exception& error) {
        fault = error.what();
        return fault.c_str();
    }
}

ACCELERA_EXPORT void accelera_unregister() { accelera::libraries().clear(); }

// Put the allocator that takes from arenas before torch's; the arguments are addresses of functions. Returns
// what went wrong, or null.
ACCELERA_EXPORT const char* accelera_use_arenas(int64_t allocate, int64_t release, int64_t refusal) {
    static thread_local std::string fault;
    try {
        accelera::ArenaFunctions functions;
        functions.allocate = reinterpret_cast<decltype(functions.allocate)>(allocate);
        functions.release = reinterpret_cast<decltype(functions.release)>(release);
        functions.refusal = reinterpret_cast<decltype(functions.refusal)>(refusal);
        accelera::ArenaAllocator::install(functions);
        return nullptr;
    } catch (const std::exception& error) {
        fault = error.what();
        return fault.c_str();
    }
}

// Let torch resize a storage over memory that it did not allocate: it copies the contents to memory of its
// allocator, and releases the former. `storage` is a `c10::StorageImpl`.
ACCELERA_EXPORT void accelera_make_resizable(void* storage) {
    auto* resizable = static_cast<c10::StorageImpl*>(storage);
    resizable->set_allocator(c10::GetCPUAllocator());
    resizable->set_resizable(true);
}
