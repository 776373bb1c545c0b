#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <memory>

namespace accelera {

// Functions of the arena (csrc/bindings/arena.cpp), which lies in another library.
struct ArenaFunctions {
    void* (*allocate)(size_t, bool*) = nullptr;
    bool (*release)(void*) = nullptr;
    PyObject* (*refusal)() = nullptr;
};

// Torch's CPU allocator, once there is one: tensors of a thread that has entered an arena come from there,
// others from the allocator before. It stays for the rest of the process: what it gave out may live as long.
class ArenaAllocator final : public c10::Allocator {
  public:
    static void install(const ArenaFunctions& functions) {
        static bool installed = false;
        if (installed) return;
        arena = functions;
        usual = c10::GetCPUAllocator();
        static auto& allocator = *new ArenaAllocator;
        c10::SetCPUAllocator(&allocator, /*priority=*/highest);
        installed = c10::GetCPUAllocator() == &allocator;
        TORCH_CHECK(installed, "another CPU allocator was set with the highest priority");
    }

    c10::DataPtr allocate(size_t nbytes) override {
        bool refused = false;
        void* memory = arena.allocate(nbytes, &refused);
        if (refused) refuse(nbytes);
        if (!memory) return usual->allocate(nbytes);
        if (c10::memoryProfilingEnabled()) report(memory, static_cast<int64_t>(nbytes));
        return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &release; }

    void copy_data(void* target, const void* source, std::size_t count) const override {
        default_copy_data(target, source, count);
    }

  private:
    static constexpr uint8_t highest = 255;
    inline static ArenaFunctions arena;
    inline static c10::Allocator* usual = nullptr;

    // Memory that was handed out raw does not tell whose it is.
    static void release(void* memory) {
        if (!memory || arena.release(memory)) return;
        usual->raw_deleter()(memory);
    }

    static void report(void* memory, int64_t nbytes) {
        c10::reportMemoryUsageToProfiler(memory, nbytes, 0, 0, c10::Device(c10::DeviceType::CPU));
    }

    [[noreturn]] static void refuse(size_t nbytes) {
        PyObject* reason = arena.refusal();
        TORCH_CHECK_WITH(OutOfMemoryError, reason, "[offload] ", nbytes,
                         " bytes for a tensor exceed the budget of the offloaded model");
        const PyGILState_STATE gil = PyGILState_Ensure();
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(reason)), reason);
        Py_DECREF(reason);
        python_error error;
        error.persist();
        PyGILState_Release(gil);
        throw python_error(std::move(error));
    }
};

}  // namespace accelera
