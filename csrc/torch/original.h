#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>

namespace accelera {

// SafeKernelFunction hands out boxed calls only; an explicit instantiation may name its private member.
template <class Tag, auto Member>
struct Opened {
    friend auto member_of(Tag) { return Member; }
};
struct KernelTag {
    friend auto member_of(KernelTag);
};
template struct Opened<KernelTag, &c10::SafeKernelFunction::kernel_>;

// The kernels of one operator as they were before ours: for the CPU, and for the accelerator.
template <class Op>
class Original {
  public:
    static c10::OperatorHandle& handle() {
        static auto found = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
        return found;
    }

    // Keep the kernel that the dispatcher has at `key`. One that is replaced is never freed: a thread may be
    // in it.
    static void keep(int slot, c10::DispatchKey key) {
        auto found = handle().getComputedKernelForDispatchKey(key);
        const auto* kept = kernels_[slot].load();
        if (kept && kernel(*kept)._equalsBoxedAndUnboxed(kernel(found))) return;
        kernels_[slot].store(new c10::SafeKernelFunction(std::move(found)));
    }

    template <class Return, class... Arguments>
    static Return call(int slot, c10::DispatchKeySet keys, Arguments... arguments) {
        const auto* kept = kernels_[slot].load(std::memory_order_acquire);
        return kernel(*kept).template call<Return, Arguments...>(handle(), keys,
                                                                 std::forward<Arguments>(arguments)...);
    }

  private:
    static const c10::KernelFunction& kernel(const c10::SafeKernelFunction& kept) {
        return kept.*member_of(KernelTag{});
    }

    inline static std::atomic<const c10::SafeKernelFunction*> kernels_[2]{};
};

}  // namespace accelera
