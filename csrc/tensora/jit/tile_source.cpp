#include "tensora/jit/tile_source.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

namespace accelera::tensora {

using Memory = CapturedBuffer::Kind;
using Window = TileBody::Window;

namespace {

constexpr int64_t constant_alignment = 16;

int64_t constant_bytes(const TileBody::Place& place) {
    const int64_t nbytes = place.constant->storage()->nbytes();
    return (nbytes + constant_alignment - 1) / constant_alignment * constant_alignment;
}

/// Which element of a buffer thread k of a pass reads: the same for all where the step is 0.
struct Index {
    int64_t offset = 0, step = 1;
    Index within(const Window& window) const {
        return {window.offset + window.stride * offset, window.stride * step};
    }
    std::string words() const {
        if (step == 0) return std::to_string(offset);
        const std::string scaled = step == 1 ? "k" : text("k * ", step);
        return offset ? text('(', scaled, " + ", offset, ')') : scaled;
    }
};

/// A text in the making.
class Writer {
  public:
    Writer(const TileBody& body, int rank)
        : body_(body), rank_(std::to_string(std::max(rank, 1))), made_by_(body.places.size(), nullptr) {
        for (const TileBody::Step& step : body.steps) made_by_[size_t(step.output.buffer)] = &step;
    }

    cuda::Source source() {
        members_ = text(" int64_t rows, n; Extents<", rank_, "> shape;");
        declare_places();
        write_passes();
        const std::string body = text("for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {\n",
                                      "const Place<", rank_, ", int64_t> place(a.shape, row);\n", row_, "}");
        return {"tile", "tensora/cuda/rows.cuh", "struct Arguments {" + members_ + "};", body};
    }

  private:
    using Step = TileBody::Step;

    void declare_places() {
        int64_t constants = 0;
        for (size_t i = 0; i < body_.places.size(); ++i) {
            const TileBody::Place& place = body_.places[i];
            const std::string type = element_type(int32_t(i));
            if (place.kind == Memory::argument) {
                members_ +=
                    text(" const ", type, "* p", i, "; Steps<", rank_, "> s", i, "; int64_t t", i, ";");
                row_ += text("const ", type, "* const x", i, " = a.p", i, " + place.in(a.s", i, ");\n");
            } else if (place.kind == Memory::outside) {
                members_ += text(" ", type, "* o", place.number, ";");
            } else if (place.kind == Memory::constant) {
                row_ += text("const ", type, "* const x", i, " = reinterpret_cast<const ", type,
                             "*>(a.constants + ", constants, ");\n");
                constants += constant_bytes(place);
            }
        }
        members_ += " const unsigned char* constants;";
    }

    /// Type of a buffer's elements: that of the windows over it.
    std::string element_type(int32_t buffer) const {
        for (const Step& step : body_.steps) {
            if (step.output.buffer == buffer) return cuda::type_name(step.output.dtype);
            for (const Window& input : step.inputs)
                if (input.buffer == buffer) return cuda::type_name(input.dtype);
        }
        return "unsigned char";  // nobody reads it
    }

    /// Reductions that need equally many others before them, and run over equally many elements, share a
    /// pass; results come last.
    void write_passes() {
        std::vector<int> depth(body_.places.size());
        std::map<std::pair<int, int64_t>, std::vector<const Step*>> passes;
        for (const Step& step : body_.steps) {
            int& own = depth[size_t(step.output.buffer)];
            for (const Window& input : step.inputs) own = std::max(own, depth[size_t(input.buffer)]);
            if (step.reducer) passes[{own++, step.n}].push_back(&step);
        }
        for (const auto& [place, steps] : passes) write_reductions(place.second, steps);
        std::vector<const Step*> rows;
        for (const Step& step : body_.steps) {
            if (body_.places[size_t(step.output.buffer)].kind != Memory::outside) continue;
            if (body_.results[size_t(number_of(step))].shape.empty())
                row_ += text("if (threadIdx.x == 0) a.o", number_of(step),
                             "[row] = ", element(step.inputs[0], {0, 0}), ";\n");
            else
                rows.push_back(&step);
        }
        if (rows.empty()) return;
        for (const Step* const step : rows)
            loop_ += text("a.o", number_of(*step), "[row * a.n + k] = ", element(step->inputs[0], {}), ";\n");
        end_pass(body_.length);
    }

    int number_of(const Step& step) const { return body_.places[size_t(step.output.buffer)].number; }

    void write_reductions(int64_t n, const std::vector<const Step*>& steps) {
        std::string sums;
        for (const Step* const step : steps) {
            const auto [join, accumulator] = cuda::folded(step->name, step->inputs[0].dtype);
            const std::string type = cuda::type_name(accumulator), with = text(join, '<', type, '>');
            const int32_t buffer = step->output.buffer;
            row_ += text(type, " m", buffer, " = ", with, "::start();\n");
            const std::string each = element(step->inputs[0], {});
            loop_ += text("m", buffer, " = ", with, "::join(m", buffer, ", cast_value<", type, ">(", each,
                          "));\n");
            sums += text("const ", cuda::type_name(step->output.dtype), " b", buffer, " = cast_value<",
                         cuda::type_name(step->output.dtype), ">(over_block<", with, ">(m", buffer, "));\n");
        }
        end_pass(n);
        row_ += sums;
    }

    void end_pass(int64_t n) {
        row_ += text("for (int64_t k = threadIdx.x; k < ", n == body_.length ? "a.n" : std::to_string(n),
                     "; k += blockDim.x) {\n", loop_, "}\n");
        loop_.clear();
        in_loop_.clear();
    }

    /// Name of an element, computed in the pass, or before it where it is the same for all threads.
    std::string element(const Window& window, const Index& outer) {
        const Index at = outer.within(window);
        const Step* const step = made_by_[size_t(window.buffer)];
        if (step && step->reducer) return text('b', window.buffer);
        auto& known = at.step ? in_loop_ : in_row_;
        const std::array<int64_t, 3> key{window.buffer, at.offset, at.step};
        const auto found = known.find(key);
        if (found != known.end()) return found->second;
        const std::string value = step ? computed(*step, at) : loaded(window.buffer, at);
        const std::string name = text('v', n_values_++);
        (at.step ? loop_ : row_) +=
            text("const ", cuda::type_name(window.dtype), ' ', name, " = ", value, ";\n");
        return known[key] = name;
    }

    std::string loaded(int32_t buffer, const Index& at) const {
        const bool strided = body_.places[size_t(buffer)].kind == Memory::argument;
        return strided ? text('x', buffer, "[", at.words(), " * a.t", buffer, "]")
                       : text('x', buffer, '[', at.words(), ']');
    }

    std::string computed(const Step& step, const Index& at) {
        std::vector<std::string> inputs;
        for (const Window& input : step.inputs) inputs.push_back(element(input, at));
        return cuda::formula_text(step.name, step.operands, step.output.dtype, inputs);
    }

    const TileBody& body_;
    std::string rank_;
    std::vector<const Step*> made_by_;  ///< by buffer
    std::string members_, row_, loop_;
    std::map<std::array<int64_t, 3>, std::string> in_row_, in_loop_;
    int n_values_ = 0;
};

}  // namespace

cuda::Source tile_source(const TileBody& body, int leading_axes) {
    return Writer(body, leading_axes).source();
}

std::vector<char> tile_constants(const TileBody& body) {
    std::vector<char> all;
    for (const TileBody::Place& place : body.places) {
        if (place.kind != Memory::constant) continue;
        const size_t begin = all.size();
        const Storage& storage = *place.constant->storage();
        all.resize(begin + size_t(constant_bytes(place)));
        std::memcpy(all.data() + begin, storage.data(), size_t(storage.nbytes()));
    }
    return all;
}

}  // namespace accelera::tensora
