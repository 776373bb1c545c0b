#include "tensora/core/op.h"

#include <algorithm>
#include <cstring>

#include "tensora/base/threads.h"
#include "tensora/core/autocast.h"
#include "tensora/core/autograd.h"
#include "tensora/core/basic_functions.h"
#include "tensora/core/budget.h"
#include "tensora/core/capture_events.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

const Params no_params{};

namespace {

std::vector<const Op*>& entries() {
    static auto* const all = new std::vector<const Op*>;
    return *all;
}

/// Where an entry of this name stands, or would have to.
std::vector<const Op*>::iterator place_of(const char* name) {
    return std::lower_bound(entries().begin(), entries().end(), name,
                            [](const Op* a, const char* b) { return std::strcmp(a->name, b) < 0; });
}

void check(const Call& call) {
    const Op& op = call.op;
    if (op.arity >= 0 && int(call.in.size()) != op.arity)
        fail(Kind::type, "[", op.name, "] ", call.in.size(), " tensors given, ", op.arity, " needed");
    if (op.types == any_type) return;
    for (const T& tensor : call.in)
        if (!is(tensor->dtype(), op.types))
            fail(Kind::dtype, "[", op.name, "] not defined for ", name_of(tensor->dtype()),
                 op.inexact_only()     ? "; convert with .to(float32)"
                 : op.types & booleans ? ""
                                       : "; convert with .to(int64) or .to(float32)");
}

}  // namespace

const char* name_of(Family family) {
    constexpr const char* names[] = {"elementwise", "reduction",   "scan",  "movement",
                                     "indexing",    "contraction", "fused", "search",
                                     "linalg",      "creation",    "user"};
    return names[int(family)];
}

const char* name_of(Precision precision) {
    constexpr const char* names[] = {"inputs", "lower", "float32", "widest"};
    return names[int(precision)];
}

const Op& enter(const Op& op) {
    Op* const kept = new Op(op);
    if (op.family == Family::elementwise && !op.cpu) {
        kept->loops = loops_named(op.name);
        kept->rule = elementwise_rule;
        kept->cpu = elementwise_kernel;
        kept->cuda = elementwise_cuda;
    }
    entries().insert(place_of(op.name), kept);
    return *kept;
}

const std::vector<const Op*>& table() { return entries(); }

const Op& op_named(const char* name) {
    const auto place = place_of(name);
    if (place != entries().end() && std::strcmp((*place)->name, name) == 0) return **place;
    fail(Kind::value, "[tensora] no operation is called '", name, "'; tensora.ops() lists all");
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

void compute_on_host(Call& call, Device device) {
    std::vector<T> inputs;
    for (const T& tensor : call.in) inputs.push_back(to_device(tensor, cpu));
    Call host{call.op, inputs, call.params};
    host.made = call.made;
    {
        const DeviceScope scope(cpu);
        for (int i = 0; i < call.op.outputs; ++i)
            host.out[i] = Tensor::empty(host.made[i].shape, host.made[i].dtype);
        call.op.cpu(host);
    }
    for (int i = 0; i < call.op.outputs; ++i) {
        call.made[i] = host.made[i];
        call.out[i] = to_device(host.out[i], device);
    }
}

Device device_of(const Op& op, std::span<const T> inputs) {
    if (inputs.empty()) return DeviceScope::current();
    Device result = cpu;
    for (const T& tensor : inputs) {
        const Device device = tensor->device();
        if (device.is_cpu() || device == result) continue;
        if (!result.is_cpu())
            fail(Kind::value, "[", op.name, "] tensors on ", name_of(result), " and ", name_of(device),
                 "; bring them to one device with .to()");
        result = device;
    }
    return result;
}

namespace {

bool on_one_device(std::span<const T> inputs) {
    for (const T& tensor : inputs)
        if (!(tensor->device() == inputs[0]->device())) return false;
    return true;
}

/// Inputs of which some are on the CPU, and come to the others' device. Numbers stay: a kernel takes them as
/// arguments.
std::vector<T> gathered(const Op& op, std::span<const T> inputs) {
    const Device device = device_of(op, inputs);
    std::vector<T> result;
    for (const T& tensor : inputs) {
        const bool number = tensor->size() == 1 && tensor->dims() == 0 && op.family == Family::elementwise;
        result.push_back(number ? tensor : to_device(tensor, device));
    }
    return result;
}

}  // namespace

namespace {

/// Elementwise operation on small tensors that lie alike, for which most of what run_forward does is not
/// needed; null for all others.
T run_small(const Op& op, std::span<const T> in) {
    const Tensor& x = *in[0];
    const Tensor& y = *in.back();
    if (!x.device().is_cpu() || !y.device().is_cpu() || !DeviceScope::current().is_cpu()) return T();
    if (in.size() > 2 || x.size() > grain || x.size() >= fusion_least() || is_recording() ||
        StepBudget::here() || thread_state.capture)
        return T();
    const bool alike = in.size() == 1 || (x.dtype() == y.dtype() && x.shape() == y.shape() && y.contiguous());
    const LoopRow::Entry& entry = op.loops->of[int(x.dtype())];
    if (!alike || !x.contiguous() || !entry.loop || int(in.size()) != op.arity) return T();
    T out = Tensor::empty_like(x, entry.out);
    const char* const data[] = {x.bytes(), y.bytes()};
    const int64_t each = size_of(x.dtype());
    const int64_t steps[] = {each, each};
    entry.loop(x.size(), out->bytes(), size_of(entry.out), data, steps);
    if (op.vjp && any_tracked(in)) {
        Call call{op, in, no_params};
        call.make(x.shape(), entry.out);
        call.out[0] = out;
        record(call);
    }
    return out;
}

/// Results of an operation that makes no view.
void compute(Call& call, Device device) {
    const Op& op = call.op;
    for (const T& tensor : call.in) tensor->storage();  // what waits runs now
    RecordedStep step(op.name, {call.in}, StepBudget::covers(device) ? &call : nullptr);
    const GradMode off(false);  // kernels may use operations
    const RunNow now;
    const AutocastPause as_given;
    Capture* const capture = thread_state.capture;
    std::optional<PeakGauge> workspace;
    const CapturePause pause;
    if (StepBudget::here() && !StepBudget::covers(device)) [[unlikely]]
        step.require_contents();
    if (!device.is_cpu() && !op.cuda) {
        compute_on_host(call, device);
    } else {
        const DeviceScope scope(device);
        for (int i = 0; i < op.outputs; ++i)
            call.out[i] = Tensor::empty(call.made[i].shape, call.made[i].dtype);
        if (capture) [[unlikely]]
            workspace.emplace();
        step.compute([&] { device.is_cpu() ? op.cpu(call) : op.cuda(call); });
    }
    if (capture) [[unlikely]]
        capture_call(*capture, call, workspace ? workspace->nbytes() : 0);
    if (!is_recording()) [[likely]]
        return;
    for (const T& tensor : call.in) step.read(*tensor->storage());
    step.cost(cost_of(call));
}

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
        const Device device = op.device ? op.device(call) : device_of(op, call.in);
        call.out[0] = defer(call, device);
        if (!call.out[0]) compute(call, device);
    }
    if (op.vjp || op.view) record(call);
}

}  // namespace

namespace {

/// Inputs of an operation that are made to fit: cast by mixed precision, and brought to one device.
class Fitted {
  public:
    Fitted(const Op& op, std::span<const T> inputs) : inputs_(inputs) {
        if (autocasting) [[unlikely]]
            cast(op);
    }
    void gather(const Op& op) {
        if (!on_one_device(inputs_)) [[unlikely]]
            keep(gathered(op, inputs_));
    }
    std::span<const T> inputs() const { return inputs_; }

  private:
    void cast(const Op& op) {
        if (op.autocast != Precision::inputs) keep(autocast_inputs(op.autocast, inputs_));
    }
    void keep(std::vector<T> made) { inputs_ = made_ = std::move(made); }

    std::span<const T> inputs_;
    std::vector<T> made_;
};

}  // namespace

T apply(const Op& op, std::span<const T> given, const Params& params) {
    Fitted fitted(op, given);
    if (op.loops)
        if (T result = run_small(op, fitted.inputs())) return result;
    fitted.gather(op);
    Call call{op, fitted.inputs(), params};
    run_forward(call);
    return std::move(call.out[0]);
}

std::array<T, 3> apply_all(const Op& op, std::span<const T> given, const Params& params) {
    Fitted fitted(op, given);
    fitted.gather(op);
    Call call{op, fitted.inputs(), params};
    run_forward(call);
    return std::move(call.out);
}

}  // namespace accelera::tensora
