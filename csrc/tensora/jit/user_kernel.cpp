#include "tensora/jit/user_kernel.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "tensora/core/autograd.h"

namespace accelera::tensora {

namespace {

/// Kernels by their entries. Both stay, as a graph may refer to them.
std::unordered_map<const Op*, UserKernel*>& kernels() {
    static auto* const all = new std::unordered_map<const Op*, UserKernel*>;
    return *all;
}

// Of entries and gradients.
std::recursive_mutex& kernel_mutex() {
    static auto* const one = new std::recursive_mutex;
    return *one;
}

std::string free_name(const std::string& name) {
    const auto taken = [](const std::string& wanted) {
        return std::any_of(table().begin(), table().end(), [&](const Op* op) { return wanted == op->name; });
    };
    std::string result = name;
    for (int i = 2; taken(result); ++i) result = text(name, ".", i);
    return result;
}

}  // namespace

std::vector<DType> types_of(std::span<const T> tensors) {
    std::vector<DType> types;
    for (const T& tensor : tensors) types.push_back(tensor->dtype());
    return types;
}

UserKernel::UserKernel(const std::string& name, int inputs, int outputs, Source source)
    : name_(name), source_(std::move(source)) {
    const std::lock_guard lock(kernel_mutex());
    const auto computed = [](Call& call) { of(call.op).compute(call); };
    op_ = &enter({.name = (new std::string(free_name(name)))->c_str(),  // stays with the entry
                  .family = Family::user,
                  .arity = inputs,
                  .outputs = outputs,
                  .rule = [](Call& call) { of(call.op).shape(call); },
                  .cpu = computed,
                  .cuda = computed,
                  .vjp = inputs + outputs <= most_inputs ? vjp : nullptr,
                  .saves = (1u << inputs) - 1});
    kernels()[op_] = this;
}

UserKernel& UserKernel::of(const Op& op) {
    const std::lock_guard lock(kernel_mutex());
    return *kernels().at(&op);
}

UserKernel& UserKernel::gradient(int group) {
    const std::lock_guard lock(kernel_mutex());
    UserKernel*& known = gradients_[group];
    if (!known) known = source_.gradient(group);
    return *known;
}

void UserKernel::vjp(Backward& c) {
    UserKernel& kernel = of(c.op());
    std::vector<T> inputs;
    for (int i = 0; i < c.inputs(); ++i) inputs.push_back(c.input(i));
    int dims = 0;
    for (int i = 0; i < c.inputs(); ++i) dims = std::max(dims, c.shape(i).size());
    for (int i = 0; i < c.op().outputs; ++i) inputs.push_back(kernel.slope(c.grad(i), dims));
    const int each = c.inputs() <= together ? c.inputs() : 1;
    for (int first = 0; first < c.inputs(); first += each) {
        bool wanted = false;
        for (int i = first; i < first + each; ++i) wanted = wanted || c.wants(i);
        if (!wanted) continue;
        const auto found = apply_all(kernel.gradient(first / each).op(), inputs, no_params);
        for (int i = first; i < first + each; ++i)
            if (c.wants(i)) c.give(i, found[size_t(i - first)]);
    }
}

}  // namespace accelera::tensora
