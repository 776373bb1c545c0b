#include "tensora/jit/tile_kernel.h"

#include <algorithm>
#include <cstring>

#include "tensora/core/threads.h"
#include "tensora/functions.h"

namespace accelera::tensora {

using Memory = CapturedBuffer::Kind;

namespace {

/// Elements of a row that a step reads or writes: a window of a buffer.
struct Window {
    int32_t buffer;
    int64_t offset, stride;  ///< in elements
    int64_t each;            ///< bytes of one
};

int64_t bytes_for(int64_t n, DType dtype) { return (n * size_of(dtype) + 63) / 64 * 64; }

Window window_of(const CapturedOperand& operand) {
    const Layout& layout = operand.layout;
    return {operand.buffer, layout.offset, layout.shape.empty() ? 0 : layout.strides[0],
            size_of(operand.dtype)};
}

constexpr const char* reduction_names[] = {"sum", "prod", "max", "min", "any", "all"};

/// The reduction that an entry of the op table makes, or null.
const Reducer* reducer_of(const CapturedStep& step) {
    for (int i = 0; i < n_reductions; ++i)
        if (std::strcmp(step.op->name, reduction_names[i]) == 0)
            return &reducers().of[i][int(step.inputs[0].dtype)];
    return nullptr;
}

}  // namespace

/// Operations on one row of a known length.
struct TileKernel::Body {
    struct Step {
        const char* name;
        Loop loop = nullptr;
        const Reducer* reducer = nullptr;
        int64_t n = 1;
        std::vector<Window> inputs;
        Window output{};
    };
    /// Where a buffer lies: rows of an input or output, a constant, or memory of the thread.
    struct Place {
        Memory kind = Memory::computed;
        int number = -1;  ///< of the input or output
        T constant;
        int64_t offset = 0;  ///< in the thread's memory
    };
    std::vector<Step> steps;
    std::vector<Place> places;
    std::vector<Call::Output> results;  ///< shapes of one row's
    int64_t workspace_bytes = 0;

    void place_row(const Call& call, const std::vector<Layout>& layouts, int64_t row, char* memory,
                   std::vector<char*>& at) const;
    void run_row(const std::vector<Layout>& layouts, const std::vector<char*>& at) const;

    int32_t scratch(int64_t nbytes) {
        Place place;
        place.offset = workspace_bytes;
        workspace_bytes += (nbytes + 63) / 64 * 64;
        places.push_back(place);
        return int32_t(places.size()) - 1;
    }
};

/// Brings the thread's pointers to a row of the inputs and outputs.
void TileKernel::Body::place_row(const Call& call, const std::vector<Layout>& layouts, int64_t row,
                                 char* memory, std::vector<char*>& at) const {
    for (size_t i = 0; i < places.size(); ++i) {
        const Place& place = places[i];
        if (place.kind == Memory::computed) {
            at[i] = memory + place.offset;
        } else if (place.kind == Memory::constant) {
            at[i] = place.constant->storage()->data();
        } else if (place.kind == Memory::outside) {
            const Call::Output& result = results[size_t(place.number)];
            at[i] = call.out[size_t(place.number)]->bytes() +
                    row * result.shape.product() * size_of(result.dtype);
        } else {
            const Layout& layout = layouts[size_t(place.number)];
            int64_t rest = row, first = layout.offset;
            for (int axis = layout.shape.size() - 2; axis >= 0; --axis) {
                first += rest % layout.shape[axis] * layout.strides[axis];
                rest /= layout.shape[axis];
            }
            const Tensor& input = call.input(place.number);
            at[i] = input.storage()->data() + first * size_of(input.dtype());
        }
    }
}

void TileKernel::Body::run_row(const std::vector<Layout>& layouts, const std::vector<char*>& at) const {
    const auto unit = [&](const Window& window) {
        const Place& place = places[size_t(window.buffer)];
        return place.kind == Memory::argument ? layouts[size_t(place.number)].strides.back() * window.each
                                              : window.each;
    };
    for (const Step& step : steps) {
        const char* in[3];
        int64_t strides[3];
        for (size_t k = 0; k < step.inputs.size(); ++k) {
            const Window& window = step.inputs[k];
            in[k] = at[size_t(window.buffer)] + window.offset * unit(window);
            strides[k] = window.stride * unit(window);
        }
        char* const out = at[size_t(step.output.buffer)];
        if (step.loop) {
            step.loop(step.n, out, step.output.each, in, strides);
            continue;
        }
        alignas(64) char acc[sizeof(C128)];
        step.reducer->start(1, acc);
        step.reducer->line(step.n, in[0], strides[0], acc);
        step.reducer->finish(1, acc, out);
    }
}

/// Makes a body from a captured program.
class TileKernel::Translation {
  public:
    Translation(const CapturedProgram& program, const std::string& name, int64_t length)
        : program_(program), name_(name), length_(length) {}

    std::shared_ptr<const Body> body() {
        for (const CapturedBuffer& buffer : program_.buffers) add_place(buffer);
        for (const CapturedStep& step : program_.steps) add_step(step);
        for (size_t i = 0; i < program_.results.size(); ++i) add_result(int(i));
        return std::make_shared<const Body>(std::move(body_));
    }

  private:
    void add_place(const CapturedBuffer& buffer) {
        if (buffer.kind == Memory::computed) {
            body_.scratch(buffer.nbytes);
            return;
        }
        if (buffer.kind != Memory::argument && buffer.kind != Memory::constant)
            fail(Kind::type, "kernel ", name_, ": a tensor from outside is read; make it an argument");
        Body::Place place;
        place.kind = buffer.kind;
        place.number = buffer.argument;
        place.constant = buffer.tensor;
        body_.places.push_back(place);
    }

    void add_step(const CapturedStep& step) {
        const CapturedOperand& made = step.outputs[0];
        Body::Step one{step.op->name};
        one.output = window_of(made);
        one.reducer = reducer_of(step);
        if (one.reducer && step.inputs[0].layout.shape.size() <= 1) {
            one.n = step.inputs[0].layout.shape.product();
            one.inputs = {window_of(step.inputs[0])};
            body_.steps.push_back(std::move(one));
            return;
        }
        const ElementFormula formula = formula_of(step, true);
        one.loop = formula.loop;
        one.reducer = nullptr;
        one.n = made.layout.shape.product();
        if (!one.loop || made.layout.shape.size() > 1)
            fail(Kind::type, "kernel ", name_, ": ", step.op->name, " of shape ", made.layout.shape.words(),
                 " is no operation on a row; a tile is computed by elementwise functions, ts.where, and sum, "
                 "prod, "
                 "max, min, any and all of a row");
        const bool selects = !step.op->loops && step.inputs.size() == 3;
        for (size_t k = 0; k < step.inputs.size(); ++k) {
            const CapturedOperand& input = step.inputs[k];
            const bool as_it_is = input.dtype == formula.operands || (selects && k == 0);
            one.inputs.push_back(as_it_is ? spread(input) : converted(input, formula.operands));
        }
        body_.steps.push_back(std::move(one));
    }

    /// A row of one element is read for each element of the result.
    static Window spread(const CapturedOperand& input) {
        Window window = window_of(input);
        if (input.layout.shape.product() == 1) window.stride = 0;
        return window;
    }

    Window converted(const CapturedOperand& input, DType dtype) {
        const int64_t n = input.layout.shape.product();
        const int32_t buffer = body_.scratch(bytes_for(n, dtype));
        Body::Step step{"cast"};
        step.loop = cast_loop(input.dtype, dtype);
        step.n = n;
        step.inputs = {window_of(input)};
        step.output = {buffer, 0, 1, size_of(dtype)};
        body_.steps.push_back(step);
        return {buffer, 0, n == 1 ? 0 : 1, size_of(dtype)};
    }

    void add_result(int i) {
        const CapturedOperand& result = program_.results[size_t(i)].value;
        const Dims& shape = result.layout.shape;
        if (!(shape == Dims{}) && !(shape == Dims{length_}))
            fail(Kind::type, "kernel ", name_, ": a result of shape ", shape.words(), " for a row of ",
                 length_, " elements; return a row as long as the inputs', or one element");
        body_.results.push_back({shape, result.dtype});
        Body::Place place;
        place.kind = Memory::outside;
        place.number = i;
        body_.places.push_back(place);
        Body::Step copy{"copy"};
        copy.loop = cast_loop(result.dtype, result.dtype);
        copy.n = shape.product();
        copy.inputs = {window_of(result)};
        copy.output = {int32_t(body_.places.size()) - 1, 0, 1, size_of(result.dtype)};
        body_.steps.push_back(copy);
    }

    const CapturedProgram& program_;
    const std::string& name_;
    int64_t length_;
    Body body_;
};

namespace {

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

}  // namespace

TileKernel::TileKernel(const std::string& name, int inputs, int outputs, Source source)
    : UserKernel(name, inputs, outputs, std::move(source), false) {}

const TileKernel::Body& TileKernel::body(const KernelSignature& signature) {
    {
        const std::lock_guard lock(mutex_);
        const auto known = bodies_.find(signature);
        if (known != bodies_.end()) return *known->second;
    }
    auto made = Translation(*program(signature), name(), signature.length).body();
    const std::lock_guard lock(mutex_);
    return *bodies_.emplace(signature, std::move(made)).first->second;
}

void TileKernel::shape(Call& call) {
    const Dims shape = broadcast_shape(call);
    const Body& all = body({types_of(call.in), shape.back()});
    for (int i = 0; i < call.op.outputs; ++i) {
        Dims made = shape;
        if (all.results[size_t(i)].shape.empty()) made.resize(shape.size() - 1);
        call.make(made, all.results[size_t(i)].dtype, i);
    }
}

void TileKernel::compute(Call& call) {
    const Dims shape = broadcast_shape(call);
    const int64_t length = shape.back();
    const Body& all = body({types_of(call.in), length});
    Dims leading = shape;
    leading.resize(shape.size() - 1);
    std::vector<Layout> layouts;
    for (const T& input : call.in) layouts.push_back(broadcast_layout(*input, shape, call.op.name));
    parallel_for(leading.product(), std::max<int64_t>(1, grain / std::max<int64_t>(1, length)),
                 [&](int64_t begin, int64_t end) {
                     const Ref<Storage> memory = Storage::allocate(all.workspace_bytes);
                     std::vector<char*> at(all.places.size());
                     for (int64_t row = begin; row < end; ++row) {
                         all.place_row(call, layouts, row, memory->data(), at);
                         all.run_row(layouts, at);
                     }
                 });
}

T TileKernel::slope(const T& grad, int dims) const {
    if (grad->dims() >= dims) return grad;
    Dims shape = grad->shape();
    shape.push_back(1);
    return reshape(grad, shape);
}

std::string TileKernel::words(const KernelSignature& signature) {
    std::string result;
    for (const Body::Step& step : body(signature).steps) {
        result += text("b", step.output.buffer, " = ", step.name, "(");
        for (size_t k = 0; k < step.inputs.size(); ++k)
            result += text(k ? ", b" : "b", step.inputs[k].buffer, step.inputs[k].stride ? "[]" : "");
        result += text(") of ", step.n, "\n");
    }
    return result;
}

std::string TileKernel::cuda_source(const KernelSignature&) {
    fail(Kind::not_implemented, "kernel ", name(),
         ": a tile runs on the CPU; only kernels of single elements have "
         "CUDA sources");
}

}  // namespace accelera::tensora
