#include "tensora/jit/tile_kernel.h"

#include <algorithm>

#include "tensora/base/threads.h"
#include "tensora/core/basic_functions.h"
#include "tensora/jit/tile_source.h"

namespace accelera::tensora {

using Memory = CapturedBuffer::Kind;

namespace {

/// One row after the other on the CPU, in memory of the thread.
class Rows {
  public:
    Rows(const TileBody& body, const Call& call, const std::vector<Layout>& layouts)
        : body_(body),
          call_(call),
          layouts_(layouts),
          memory_(Storage::allocate(body.workspace_bytes)),
          at_(body.places.size()) {}

    void run(int64_t row) {
        place(row);
        for (const TileBody::Step& step : body_.steps) run_step(step);
    }

  private:
    /// Brings the pointers to a row of the inputs and outputs.
    void place(int64_t row) {
        for (size_t i = 0; i < at_.size(); ++i) {
            const TileBody::Place& place = body_.places[i];
            if (place.kind == Memory::computed) {
                at_[i] = memory_->data() + place.offset;
            } else if (place.kind == Memory::constant) {
                at_[i] = place.constant->storage()->data();
            } else if (place.kind == Memory::outside) {
                const Call::Output& result = body_.results[size_t(place.number)];
                at_[i] = call_.out[size_t(place.number)]->bytes() +
                         row * result.shape.product() * size_of(result.dtype);
            } else {
                at_[i] = input_row(place.number, row);
            }
        }
    }

    char* input_row(int number, int64_t row) const {
        const Layout& layout = layouts_[size_t(number)];
        int64_t rest = row, first = layout.offset;
        for (int axis = layout.shape.size() - 2; axis >= 0; --axis) {
            first += rest % layout.shape[axis] * layout.strides[axis];
            rest /= layout.shape[axis];
        }
        const Tensor& input = call_.input(number);
        return input.storage()->data() + first * size_of(input.dtype());
    }

    /// Bytes from an element of a buffer to the next.
    int64_t unit(const TileBody::Window& window) const {
        const TileBody::Place& place = body_.places[size_t(window.buffer)];
        const int64_t each = size_of(window.dtype);
        return place.kind == Memory::argument ? layouts_[size_t(place.number)].strides.back() * each : each;
    }

    void run_step(const TileBody::Step& step) const {
        const char* in[3];
        int64_t strides[3];
        for (size_t k = 0; k < step.inputs.size(); ++k) {
            const TileBody::Window& window = step.inputs[k];
            in[k] = at_[size_t(window.buffer)] + window.offset * unit(window);
            strides[k] = window.stride * unit(window);
        }
        char* const out = at_[size_t(step.output.buffer)];
        if (step.loop) {
            step.loop(step.n, out, size_of(step.output.dtype), in, strides);
            return;
        }
        alignas(64) char acc[sizeof(C128)];
        step.reducer->start(1, acc);
        step.reducer->line(step.n, in[0], strides[0], acc);
        step.reducer->finish(1, acc, out);
    }

    const TileBody& body_;
    const Call& call_;
    const std::vector<Layout>& layouts_;
    Ref<Storage> memory_;
    std::vector<char*> at_;
};

int64_t length_of(std::span<const T> inputs) {
    int64_t length = 1;
    for (const T& input : inputs)
        if (input->dims() > 0 && input->shape().back() != 1) length = input->shape().back();
    return length;
}

Dims broadcast_shape(const Call& call) {
    Dims shape = {length_of(call.in)};
    for (const T& input : call.in) shape = broadcast(shape, input->shape(), call.op.name);
    return shape;
}

int64_t rows_of(const Dims& shape) { return Dims(shape.begin(), shape.size() - 1).product(); }

}  // namespace

TileKernel::TileKernel(const std::string& name, int inputs, int outputs, Source source)
    : UserKernel(name, inputs, outputs, std::move(source)) {}

const TileBody& TileKernel::body(const KernelSignature& signature) {
    {
        const std::lock_guard lock(mutex_);
        const auto known = known_.find(signature);
        if (known != known_.end()) return *known->second.body;
    }
    auto made = tile_body(*program(signature), name(), signature.length);
    const std::lock_guard lock(mutex_);
    return *known_.emplace(signature, Known{std::move(made), {}}).first->second.body;
}

void TileKernel::shape(Call& call) {
    const Dims shape = broadcast_shape(call);
    const TileBody& all = body({types_of(call.in), shape.back()});
    for (int i = 0; i < call.op.outputs; ++i) {
        Dims made = shape;
        if (all.results[size_t(i)].shape.empty()) made.resize(shape.size() - 1);
        call.make(made, all.results[size_t(i)].dtype, i);
    }
}

std::vector<DType> TileKernel::results(const KernelSignature& signature) {
    std::vector<DType> types;
    for (const Call::Output& result : body(signature).results) types.push_back(result.dtype);
    return types;
}

void TileKernel::compute(Call& call) {
    const Dims shape = broadcast_shape(call);
    if (!call.out[0]->device().is_cpu()) return compute_on_device(call, shape);
    const int64_t length = shape.back();
    const TileBody& all = body({types_of(call.in), length});
    std::vector<Layout> layouts;
    for (const T& input : call.in) layouts.push_back(broadcast_layout(*input, shape, call.op.name));
    parallel_for(rows_of(shape), std::max<int64_t>(1, grain / std::max<int64_t>(1, length)),
                 [&](int64_t begin, int64_t end) {
                     Rows rows(all, call, layouts);
                     for (int64_t row = begin; row < end; ++row) rows.run(row);
                 });
}

T TileKernel::constants(const KernelSignature& signature, Device device) {
    const std::vector<char> bytes = tile_constants(body(signature));
    if (bytes.empty()) return T();
    {
        const std::lock_guard lock(mutex_);
        const T& known = known_.at(signature).constants[device.index];
        if (known) return known;
    }
    // Without the lock: the copy lets other threads run.
    const DeviceScope scope(cpu);
    const T all = Tensor::empty({int64_t(bytes.size())}, DType::u8);
    std::copy(bytes.begin(), bytes.end(), all->bytes());
    const T made = to_device(all, device);
    const std::lock_guard lock(mutex_);
    return known_.at(signature).constants[device.index] = made;
}

void TileKernel::compute_on_device(Call& call, const Dims& shape) {
    const Device device = call.out[0]->device();
    const KernelSignature signature{types_of(call.in), shape.back()};
    const TileBody& all = body(signature);
    const int leading = shape.size() - 1;
    const auto before = [&](const Dims& dims, int64_t none) {
        return leading ? Dims(dims.begin(), leading) : Dims{none};
    };
    cuda::Arguments arguments;
    arguments.add(rows_of(shape)).add(shape.back()).add(before(shape, 1));
    for (const TileBody::Place& place : all.places) {
        if (place.kind == Memory::argument) {
            const T& input = call.in[size_t(place.number)];
            const Dims steps = broadcast_layout(*input, shape, call.op.name).strides;
            arguments.add_tensor(input.get()).add(before(steps, 0)).add(steps.back());
        } else if (place.kind == Memory::outside) {
            arguments.add_tensor(call.out[size_t(place.number)].get());
        }
    }
    arguments.add_tensor(constants(signature, device).get());
    cuda::run_kernel(device.index, tile_source(all, leading), {rows_of(shape), cuda::block_for(shape.back())},
                     arguments);
}

T TileKernel::slope(const T& grad, int dims) const {
    if (grad->dims() >= dims) return grad;
    Dims shape = grad->shape();
    shape.push_back(1);
    return reshape(grad, shape);
}

std::string TileKernel::words(const KernelSignature& signature) {
    std::string result;
    for (const TileBody::Step& step : body(signature).steps) {
        result += text("b", step.output.buffer, " = ", step.name, "(");
        for (size_t k = 0; k < step.inputs.size(); ++k)
            result += text(k ? ", b" : "b", step.inputs[k].buffer, step.inputs[k].stride ? "[]" : "");
        result += text(") of ", step.n, "\n");
    }
    return result;
}

std::string TileKernel::cuda_source(const KernelSignature& signature) {
    const cuda::Source source = tile_source(body(signature), 1);
    return source.declarations + "\n" + source.body + "\n";
}

}  // namespace accelera::tensora
