#pragma once

#include <torch/library.h>

#include <string>
#include <string_view>

#include "torch/original.h"
#include "torch/size_filter.h"

namespace accelera {

// Composed: caught below autograd as well, but made of others that are looked at.
enum class Place { BelowAutograd, AboveAutograd, Composed };

// What every intercepting kernel looks at.
struct InForce {
    inline static std::atomic<int64_t> least_bytes{INT64_MAX};
    inline static std::atomic<int64_t> least_size{INT64_MAX};
    // Backend of the accelerator that torch was built for; its kernels are kept in slot 1, the CPU's in slot
    // 0.
    inline static std::atomic<c10::BackendComponent> accelerator{c10::BackendComponent::InvalidBit};
};

// What the thread lets pass: nothing (0), operators composed of others (1), everything (2).
inline thread_local int passing_level = 0;

inline std::string name_of(const char* name, const char* overload) {
    return std::string(name).substr(std::string_view("aten::").size()) + (*overload ? "." : "") + overload;
}

// The kernel put before torch's own: it hands large calls to the operator of the same schema in our
// namespace, whose kernel is the handler in Python, and calls the original for the rest.
template <class Op, Place place, Rule rule, class Schema = typename Op::schema>
struct Interception;

template <class Op, Place place, Rule rule, class Return, class... Arguments>
struct Interception<Op, place, rule, Return(Arguments...)> {
    static std::string name() { return name_of(Op::name, Op::overload_name); }

    static Return call(c10::DispatchKeySet keys, Arguments... arguments) {
        if (passing_level < passes_at) {
            Operands operands;
            (take(arguments, operands), ...);
            if (is_worthwhile(operands))
                return route().template typed<Return(Arguments...)>().call(
                    std::forward<Arguments>(arguments)...);
        }
        return Original<Op>::template call<Return, Arguments...>(slot(keys), keys,
                                                                 std::forward<Arguments>(arguments)...);
    }

    static void enter(torch::Library& library, int slot, c10::DispatchKey key) {
        Original<Op>::keep(slot, key);
        library.impl(name().c_str(),
                     torch::dispatch(key, c10::CompileTimeFunctionPointer<decltype(call), &call>()));
    }

  private:
    static constexpr int passes_at = place == Place::BelowAutograd ? 2 : 1;
    static constexpr bool in_place = std::string_view(Op::name).back() == '_';

    static bool is_worthwhile(const Operands& operands) {
        const std::optional<Rule> made = in_place ? std::nullopt : std::optional<Rule>(rule);
        return operands.plain() &&
               operands.bytes(made) >= InForce::least_bytes.load(std::memory_order_relaxed) &&
               operands.longest() >= InForce::least_size.load(std::memory_order_relaxed);
    }

    template <class Any>
    static void take(const Any&, Operands&) {}
    static void take(const at::Tensor& tensor, Operands& operands) { operands.take(tensor); }
    static void take(at::Tensor& tensor, Operands& operands) {
        if constexpr (in_place) operands.take(tensor);
    }
    static void take(const std::optional<at::Tensor>& tensor, Operands& operands) {
        if (tensor && tensor->defined()) operands.take(*tensor);
    }

    static int slot(c10::DispatchKeySet keys) {
        const auto accelerator = InForce::accelerator.load(std::memory_order_relaxed);
        return accelerator != c10::BackendComponent::InvalidBit && keys.has_backend(accelerator);
    }

    static c10::OperatorHandle& route() {
        static auto found = c10::Dispatcher::singleton().findSchemaOrThrow(
            ("accelera_route::" + std::string(Op::name).substr(6)).c_str(), Op::overload_name);
        return found;
    }
};

}  // namespace accelera
