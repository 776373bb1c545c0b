#include "tensora/core/op.h"

#include <algorithm>
#include <cstring>

#include "tensora/core/autograd.h"
#include "tensora/functions.h"
#include "tensora/kernels/elementwise.h"

namespace accelera::tensora {

const Params no_params{};

namespace {

std::vector<const Op*>& entries() {
    static auto* const all = new std::vector<const Op*>;
    return *all;
}

/// Of the entry of this name, or of the first behind it.
auto place_of(const char* name) {
    auto& all = entries();
    return std::lower_bound(all.begin(), all.end(), name,
                            [](const Op* a, const char* wanted) { return std::strcmp(a->name, wanted) < 0; });
}

Observer observer = nullptr;

void check(const Call& call) {
    const Op& op = call.op;
    if (op.arity >= 0 && int(call.in.size()) != op.arity)
        fail(Kind::type, op.name, ": ", call.in.size(), " tensors given, ", op.arity, " needed");
    if (op.types == any_type) return;
    for (const T& tensor : call.in)
        if (!is(tensor->dtype(), op.types))
            fail(Kind::type, op.name, ": not defined for ", name_of(tensor->dtype()),
                 op.inexact_only()     ? "; convert with .to(float32)"
                 : op.types & booleans ? ""
                                       : "; convert with .to(int64) or .to(float32)");
}

}  // namespace

const char* name_of(Family family) {
    constexpr const char* names[] = {"elementwise", "reduction", "scan",   "movement", "indexing",
                                     "contraction", "fused",     "search", "linalg",   "creation"};
    return names[int(family)];
}

const Op& enter(const Op& op) {
    auto& all = entries();
    const auto place = place_of(op.name);
    Op* const kept = new Op(op);
    if (op.family == Family::elementwise && !op.cpu) {
        kept->loops = loops_named(op.name);
        kept->rule = elementwise_rule;
        kept->cpu = elementwise_kernel;
    }
    all.insert(place, kept);
    return *kept;
}

const std::vector<const Op*>& table() { return entries(); }

const Op& op_named(const char* name) {
    const auto place = place_of(name);
    if (place != entries().end() && std::strcmp((*place)->name, name) == 0) return **place;
    fail(Kind::value, "tensora: no operation is called '", name, "'; tensora.ops() lists all");
}

Cost cost_of(const Call& call) {
    if (call.op.cost) return call.op.cost(call);
    Cost cost;
    int64_t largest = 0;
    for (const T& tensor : call.in) {
        cost.bytes += double(tensor->size() * size_of(tensor->dtype()));
        largest = std::max(largest, tensor->size());
    }
    for (int i = 0; i < call.op.outputs; ++i) {
        if (!call.op.view) cost.bytes += double(call.made[i].shape.product() * size_of(call.made[i].dtype));
        largest = std::max(largest, call.made[i].shape.product());
    }
    if (call.op.view) return {0, 0};
    cost.flops = call.op.flops_per_element * double(largest);
    return cost;
}

void set_observer(Observer next) { observer = next; }

namespace {

void run_forward(Call& call) {
    const Op& op = call.op;
    check(call);
    if (op.view) {
        const T& source = call.in[0];
        call.out[0] = source->alias(op.view(call));
        call.out[0]->set_base(source->base() ? source->base() : source);
        call.made[0] = {call.out[0]->shape(), call.out[0]->dtype()};
    } else {
        op.rule(call);
        for (int i = 0; i < op.outputs; ++i)
            call.out[i] = Tensor::empty(call.made[i].shape, call.made[i].dtype);
        const GradMode off(false);  // kernels may use operations
        op.cpu(call);
    }
    if (observer) [[unlikely]]
        observer(call);
    if (op.vjp || op.view) record(call);
}

}  // namespace

T apply(const Op& op, std::span<const T> inputs, const Params& params) {
    Call call{op, inputs, params};
    run_forward(call);
    return std::move(call.out[0]);
}

std::array<T, 3> apply_all(const Op& op, std::span<const T> inputs, const Params& params) {
    Call call{op, inputs, params};
    run_forward(call);
    return std::move(call.out);
}

}  // namespace accelera::tensora
