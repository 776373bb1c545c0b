// Translation of a captured program to operations on one row.
#include "tensora/jit/tile_body.h"

#include <cstring>

#include "tensora/core/basic_functions.h"

namespace accelera::tensora {

using Memory = CapturedBuffer::Kind;
using Window = TileBody::Window;

int32_t TileBody::add_scratch(int64_t nbytes) {
    Place place;
    place.offset = workspace_bytes;
    workspace_bytes += (nbytes + 63) / 64 * 64;
    places.push_back(place);
    return int32_t(places.size()) - 1;
}

namespace {

Window window_of(const CapturedOperand& operand) {
    const Layout& layout = operand.layout;
    return {operand.buffer, layout.offset, layout.shape.empty() ? 0 : layout.strides[0], operand.dtype};
}

constexpr const char* reduction_names[] = {"sum", "prod", "max", "min", "any", "all"};

/// The reduction that an entry of the op table makes, or null.
const Reducer* reducer_of(const CapturedStep& step) {
    for (int i = 0; i < n_reductions; ++i)
        if (std::strcmp(step.op->name, reduction_names[i]) == 0)
            return &reducers().of[i][int(step.inputs[0].dtype)];
    return nullptr;
}

/// Makes a body from a captured program.
class Translation {
  public:
    Translation(const CapturedProgram& program, const std::string& name, int64_t length)
        : program_(program), name_(name) {
        body_.length = length;
    }

    std::shared_ptr<const TileBody> body() {
        for (const CapturedBuffer& buffer : program_.buffers) add_place(buffer);
        for (const CapturedStep& step : program_.steps) add_step(step);
        for (size_t i = 0; i < program_.results.size(); ++i) add_result(int(i));
        return std::make_shared<const TileBody>(std::move(body_));
    }

  private:
    void add_place(const CapturedBuffer& buffer) {
        if (buffer.kind == Memory::computed) {
            body_.add_scratch(buffer.nbytes);
            return;
        }
        if (buffer.kind != Memory::argument && buffer.kind != Memory::constant)
            fail(Kind::type, "[kernel ", name_, "] a tensor from outside is read; make it an argument");
        body_.places.push_back({buffer.kind, buffer.argument, buffer.tensor});
    }

    void add_step(const CapturedStep& step) {
        const CapturedOperand& made = step.outputs[0];
        TileBody::Step one{step.op->name, step.inputs.empty() ? made.dtype : step.inputs[0].dtype};
        one.output = window_of(made);
        one.reducer = reducer_of(step);
        if (one.reducer && step.inputs[0].layout.shape.size() <= 1) {
            one.n = step.inputs[0].layout.shape.product();
            one.inputs = {window_of(step.inputs[0])};
            body_.steps.push_back(std::move(one));
            return;
        }
        const ElementFormula formula = formula_of(step, true);
        one.operands = formula.operands;
        one.loop = formula.loop;
        one.reducer = nullptr;
        one.n = made.layout.shape.product();
        if (!one.loop || made.layout.shape.size() > 1)
            fail(Kind::type, "[kernel ", name_, "] ", step.op->name, " of shape ", made.layout.shape.words(),
                 " is no operation on a row; a tile is computed by elementwise functions, ts.where, and sum, "
                 "prod, max, min, any and all of a row");
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
        const int32_t buffer = body_.add_scratch(n * size_of(dtype));
        TileBody::Step step{"cast", input.dtype, cast_loop(input.dtype, dtype)};
        step.n = n;
        step.inputs = {window_of(input)};
        step.output = {buffer, 0, 1, dtype};
        body_.steps.push_back(step);
        return {buffer, 0, n == 1 ? 0 : 1, dtype};
    }

    void add_result(int i) {
        const CapturedOperand& result = program_.results[size_t(i)].value;
        const Dims& shape = result.layout.shape;
        if (!(shape == Dims{}) && !(shape == Dims{body_.length}))
            fail(Kind::type, "[kernel ", name_, "] a result of shape ", shape.words(), " for a row of ",
                 body_.length, " elements; return a row as long as the inputs', or one element");
        body_.results.push_back({shape, result.dtype});
        body_.places.push_back({Memory::outside, i});
        TileBody::Step copy{"cast", result.dtype, cast_loop(result.dtype, result.dtype)};
        copy.n = shape.product();
        copy.inputs = {window_of(result)};
        copy.output = {int32_t(body_.places.size()) - 1, 0, 1, result.dtype};
        body_.steps.push_back(copy);
    }

    const CapturedProgram& program_;
    const std::string& name_;
    TileBody body_;
};

}  // namespace

std::shared_ptr<const TileBody> tile_body(const CapturedProgram& program, const std::string& name,
                                          int64_t length) {
    return Translation(program, name, length).body();
}

}  // namespace accelera::tensora
