// Steps of optimizers: all tensors of a group in one section of the pool's threads, written in place.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "tensora/base/threads.h"
#include "tensora/core/autocast.h"
#include "tensora/core/autograd.h"
#include "tensora/cuda/kernels.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"

namespace accelera::tensora {

namespace {

void check_like(const char* op, const char* what, const Tensor& param, const Tensor& other) {
    if (!is(param.dtype(), floats))
        fail(Kind::dtype, "[", op, "] a parameter of type ", name_of(param.dtype()),
             "; give real floating-point ones");
    require_shape(other.shape() == param.shape() && other.dtype() == param.dtype(), "[", op, "] a ", what,
                  " of shape ", other.shape().words(), " and type ", name_of(other.dtype()),
                  " for a parameter of shape ", param.shape().words(), " and type ", name_of(param.dtype()));
    require(other.device() == param.device(), "[", op, "] a ", what, " on ", name_of(other.device()),
            " for a parameter on ", name_of(param.device()));
}

void check_written(const char* op, const Tensor& tensor) {
    check_writable(tensor, op);
    require_shape(tensor.contiguous(), "[", op, "] a parameter or state of shape ", tensor.shape().words(),
                  " that is not contiguous; make it so before the optimizer is");
}

/// The tensors on the CPU, by their numbers; `step(i)` is called for each of the others.
template <typename Step>
std::vector<size_t> split_by_device(const std::vector<T>& tensors, Step step) {
    std::vector<size_t> on_cpu;
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i]->device().is_cpu() ? on_cpu.push_back(i) : step(i);
    return on_cpu;
}

/// Call `work(i, begin, end)` for ranges of the elements of tensor i, together all of these tensors.
template <typename Work>
void over_all(const std::vector<T>& tensors, const std::vector<size_t>& chosen, Work work) {
    std::vector<int64_t> ends;
    int64_t total = 0;
    for (const size_t i : chosen) ends.push_back(total += tensors[i]->size());
    parallel_for(total, grain, [&](int64_t begin, int64_t end) {
        size_t i = size_t(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
        for (; begin < end; ++i) {
            const int64_t first = ends[i] - tensors[chosen[i]]->size(), stop = std::min(end, ends[i]);
            if (begin < stop) work(chosen[i], begin - first, stop - first);
            begin = std::max(begin, stop);
        }
    });
}

std::vector<T> contiguous_grads(const char* op, const std::vector<T>& params, const std::vector<T>& grads) {
    require(params.size() == grads.size(), "[", op, "] ", params.size(), " parameters and ", grads.size(),
            " gradients");
    std::vector<T> result;
    for (size_t i = 0; i < params.size(); ++i) {
        check_like(op, "gradient", *params[i], *grads[i]);
        check_written(op, *params[i]);
        result.push_back(contiguous(grads[i]));
        result.back()->storage();  // a deferred one is computed before the threads need it
    }
    return result;
}

void check_states(const char* op, const std::vector<T>& params, const std::vector<T>& states) {
    if (states.empty()) return;
    require(states.size() == params.size(), "[", op, "] ", states.size(), " states of ", params.size(),
            " parameters");
    for (size_t i = 0; i < params.size(); ++i) {
        check_like(op, "state", *params[i], *states[i]);
        check_written(op, *states[i]);
    }
}

/// Counts the write, also for a record.
void note_written(const RecordedStep& step, const std::vector<T>& tensors) {
    for (const T& tensor : tensors) {
        step.read(*tensor->storage());
        step.write(*tensor->storage());
        tensor->storage()->bump();
    }
}

void note_read(const RecordedStep& step, const std::vector<T>& tensors) {
    for (const T& tensor : tensors) step.read(*tensor->storage());
}

}  // namespace

void sgd_step(const std::vector<T>& params, const std::vector<T>& grads, const std::vector<T>& buffers,
              const SgdStep& options) {
    const GradMode off(false);
    const RecordedStep recorded("sgd_step", {params, grads, buffers});
    recorded.compute([&] {
        const std::vector<T> contiguous = contiguous_grads("sgd_step", params, grads);
        check_states("sgd_step", params, buffers);
        const auto on_cpu = split_by_device(params, [&](size_t i) {
            cuda::sgd_step(*params[i], *contiguous[i], buffers.empty() ? nullptr : buffers[i].get(), options);
        });
        over_all(params, on_cpu, [&](size_t i, int64_t begin, int64_t end) {
            SgdStep step = options;
            step.param = params[i]->bytes();
            step.grad = contiguous[i]->bytes();
            step.buffer = buffers.empty() ? nullptr : buffers[i]->bytes();
            row_loops(params[i]->dtype()).sgd(step, begin, end);
        });
        note_read(recorded, contiguous);
    });
    note_written(recorded, params);
    note_written(recorded, buffers);
}

void adam_step(const std::vector<T>& params, const std::vector<T>& grads, const AdamStates& states,
               const AdamStep& options) {
    const GradMode off(false);
    const RecordedStep recorded("adam_step", {params, grads, states.means, states.squares, states.largest});
    recorded.compute([&] {
        const std::vector<T> contiguous = contiguous_grads("adam_step", params, grads);
        for (const auto* each : {&states.means, &states.squares, &states.largest})
            check_states("adam_step", params, *each);
        require(states.means.size() == params.size() && states.squares.size() == params.size(),
                "[adam_step] means and squares are needed for each parameter");
        const auto on_cpu = split_by_device(params, [&](size_t i) {
            const Tensor* const most = states.largest.empty() ? nullptr : states.largest[i].get();
            cuda::adam_step(
                {params[i].get(), contiguous[i].get(), states.means[i].get(), states.squares[i].get(), most},
                options);
        });
        over_all(params, on_cpu, [&](size_t i, int64_t begin, int64_t end) {
            AdamStep step = options;
            step.param = params[i]->bytes();
            step.grad = contiguous[i]->bytes();
            step.mean = states.means[i]->bytes();
            step.square = states.squares[i]->bytes();
            step.most = states.largest.empty() ? nullptr : states.largest[i]->bytes();
            row_loops(params[i]->dtype()).adam(step, begin, end);
        });
        note_read(recorded, contiguous);
    });
    for (const auto* each : {&params, &states.means, &states.squares, &states.largest})
        note_written(recorded, *each);
}

// --- gradients of a scaled loss ---------------------------------------------------------------------------

namespace {

/// Multiplies elements; whether all were finite.
template <typename E>
bool scale_elements(E* elements, int64_t n, float factor) {
    bool finite = true;
    for (int64_t i = 0; i < n; ++i) {
        finite = finite && std::isfinite(double(elements[i]));
        elements[i] = E(elements[i] * factor);
    }
    return finite;
}

bool scale_range(const Tensor& tensor, int64_t begin, int64_t end, float factor) {
    const auto scaled = [&]<typename E>(Tag<E>) {
        return scale_elements(tensor.data<E>() + begin, end - begin, factor);
    };
    switch (tensor.dtype()) {
        case DType::f16:
            return scaled(Tag<Half>());
        case DType::bf16:
            return scaled(Tag<BFloat>());
        case DType::f64:
            return scaled(Tag<double>());
        default:
            return scaled(Tag<float>());
    }
}

/// The same for tensors that lie anywhere, by operations: extremes need no memory, and know NaN.
T finite_of(const T& grad) {
    const auto isfinite = [](const T& x) { return run(op_named("isfinite"), no_params, x); };
    Params all;
    for (int i = 0; i < grad->dims(); ++i) all.a.push_back(i);
    if (is(grad->dtype(), complexes)) return run(op_named("all"), all, isfinite(grad));
    return logical_and(isfinite(run(op_named("max"), all, grad)), isfinite(run(op_named("min"), all, grad)));
}

/// What `unscale` does; `together` are the gradients that it multiplies itself.
bool unscale_now(const std::vector<T>& grads, double factor, std::vector<T>& together) {
    std::vector<T> flags;  // one for each device, so that it is waited for once
    for (const T& grad : grads) {
        check_writable(*grad, "unscale");
        grad->storage();  // a deferred one is computed before the threads need it
        if (grad->size() == 0) continue;
        if (grad->device().is_cpu() && grad->contiguous() && is(grad->dtype(), floats)) {
            together.push_back(grad);
            continue;
        }
        const T flag = finite_of(grad);
        const bool joins = !flags.empty() && flags.back()->device() == flag->device();
        joins ? void(flags.back() = logical_and(flags.back(), flag)) : flags.push_back(flag);
        const T both[] = {grad, Tensor::scalar(real_of(grad->dtype()), double(float(factor)))};
        apply_in_place(op_named("multiply"), both, grad);
    }
    std::atomic<bool> finite{true};
    std::vector<size_t> every(together.size());
    std::iota(every.begin(), every.end(), size_t(0));
    over_all(together, every, [&](size_t i, int64_t begin, int64_t end) {
        if (!scale_range(*together[i], begin, end, float(factor)))
            finite.store(false, std::memory_order_relaxed);
    });
    for (const T& flag : flags)
        if (!*to_device(flag, cpu)->data<bool>()) finite = false;
    return finite;
}

}  // namespace

bool unscale(const std::vector<T>& grads, double factor) {
    const GradMode off(false);
    const AutocastPause as_given;
    const RecordedStep recorded("unscale", {grads});
    std::vector<T> together;
    bool finite = true;  // of a step without contents as well: its plan is that of the common case
    recorded.compute([&] { finite = unscale_now(grads, factor, together); });
    note_written(recorded, together);
    return finite;
}

}  // namespace accelera::tensora
