#include "tensora/core/fused_loop.h"

#include <algorithm>
#include <cstring>

#include "tensora/base/threads.h"
#include "tensora/core/basic_functions.h"
#include "tensora/core/device_kernels.h"

namespace accelera::tensora {

namespace {

constexpr int64_t block = 512;  // elements

/// A tensor that a loop reads: one number, elements that lie like the result's, or elements that are
/// gathered for each block.
struct Leaf {
    const char* data = nullptr;
    int64_t each = 0;
    bool scalar = false;
    bool dense = false;
    bool gathered() const { return !scalar && !dense; }
    Dims shape, strides;  // of a gathered one, in elements, broadcast to the result's shape

    Leaf(const Tensor& tensor, const Dims& result) : data(tensor.bytes()), each(size_of(tensor.dtype())) {
        scalar = tensor.size() == 1;
        dense = !scalar && tensor.contiguous() && tensor.shape() == result;
        if (!scalar && !dense) join_axes(broadcast_layout(tensor, result, "elementwise"));
    }

    /// Elements `begin` to `begin + n` of the result's order, to `out`.
    void gather(int64_t begin, int64_t n, char* out) const {
        const int last = shape.size() - 1;
        Dims index = Dims::filled(shape.size(), 0);
        int64_t rest = begin;
        for (int i = last; i >= 0; --i) {
            index[i] = rest % shape[i];
            rest /= shape[i];
        }
        while (n > 0) {
            int64_t at = 0;
            for (int i = 0; i <= last; ++i) at += index[i] * strides[i];
            const int64_t run = std::min(n, shape[last] - index[last]);
            copy_run(data + at * each, run, out);
            out += run * each;
            n -= run;
            index[last] = 0;
            for (int i = last - 1; i >= 0 && ++index[i] == shape[i]; --i) index[i] = 0;
        }
    }

  private:
    void join_axes(const Layout& layout) {
        for (int i = 0; i < layout.shape.size(); ++i) {
            if (layout.shape[i] == 1) continue;
            if (!shape.empty() && strides.back() == layout.strides[i] * layout.shape[i]) {
                shape.back() *= layout.shape[i];
                strides.back() = layout.strides[i];
            } else {
                shape.push_back(layout.shape[i]);
                strides.push_back(layout.strides[i]);
            }
        }
    }

    void copy_run(const char* from, int64_t run, char* out) const {
        const int64_t step = strides.back() * each;
        if (step == each) {
            std::memcpy(out, from, size_t(run * each));
            return;
        }
        for (int64_t i = 0; i < run; ++i) std::memcpy(out + i * each, from + i * step, size_t(each));
    }
};

}  // namespace

/// One run on the CPU: where the elements of each step lie.
class FusedLoop::Blocks {
  public:
    Blocks(const FusedLoop& loop, std::span<const T> leaves, std::span<const T> stored)
        : loop_(loop), stored_(stored), places_(loop.steps_.size()) {
        for (const T& tensor : leaves) leaves_.emplace_back(*tensor, loop.shape_);
        assign_registers();
        for (const Step& step : loop_.steps_) register_bytes_ = std::max(register_bytes_, size_of(step.out));
        for (const Leaf& leaf : leaves_) register_bytes_ = std::max(register_bytes_, leaf.each);
        register_bytes_ *= block;
    }

    /// Elements `first` to `last` of the result's order.
    void run(int64_t first, int64_t last) const {
        const int64_t blocks = (last - first + block - 1) / block;
        parallel_for(blocks, grain / block, [&](int64_t begin, int64_t end) {
            std::vector<char> registers(size_t(n_registers_ * register_bytes_) + 64);
            char* const base = registers.data() + (64 - reinterpret_cast<uintptr_t>(registers.data()) % 64);
            for (int64_t i = first + begin * block; i < std::min(first + end * block, last); i += block)
                run_block(i, std::min(block, last - i), base);
        });
    }

  private:
    struct Place {
        int buffer = -1;                                      ///< register of the result
        std::array<int, most_operands> gathered{-1, -1, -1};  ///< registers of leaves that are gathered
        int last_use = 0;
    };

    void assign_registers() {
        const std::vector<Step>& steps = loop_.steps_;
        std::vector<int> free_buffers;
        const auto take_buffer = [&] {
            if (free_buffers.empty()) return n_registers_++;
            const int buffer = free_buffers.back();
            free_buffers.pop_back();
            return buffer;
        };
        for (size_t i = 0; i < steps.size(); ++i)
            for (const Source& source : steps[i].sources)
                if (source.step >= 0) places_[size_t(source.step)].last_use = int(i);
        for (size_t i = 0; i < steps.size(); ++i) {
            const auto& sources = steps[i].sources;
            for (size_t k = 0; k < sources.size(); ++k)
                if (sources[k].leaf >= 0 && leaves_[size_t(sources[k].leaf)].gathered())
                    places_[i].gathered[k] = take_buffer();
            if (steps[i].stored < 0) places_[i].buffer = take_buffer();
            for (size_t k = 0; k < sources.size(); ++k) {
                if (places_[i].gathered[k] >= 0) free_buffers.push_back(places_[i].gathered[k]);
                const int from = sources[k].step;
                const bool counted = std::any_of(sources.begin(), sources.begin() + k,
                                                 [&](const Source& other) { return other.step == from; });
                if (from >= 0 && !counted && places_[size_t(from)].last_use == int(i) &&
                    places_[size_t(from)].buffer >= 0)
                    free_buffers.push_back(places_[size_t(from)].buffer);
            }
        }
    }

    void run_block(int64_t begin, int64_t n, char* registers) const {
        for (size_t i = 0; i < loop_.steps_.size(); ++i) {
            const Step& step = loop_.steps_[i];
            const char* in[most_operands];
            int64_t strides[most_operands];
            for (int k = 0; k < step.n; ++k) {
                const Source& source = step.sources[size_t(k)];
                if (source.step >= 0) {
                    in[k] = place_of(size_t(source.step), begin, registers);
                    strides[k] = size_of(loop_.steps_[size_t(source.step)].out);
                    continue;
                }
                const Leaf& leaf = leaves_[size_t(source.leaf)];
                in[k] = leaf.data + (leaf.dense ? begin * leaf.each : 0);
                strides[k] = leaf.scalar ? 0 : leaf.each;
                const int buffer = places_[i].gathered[size_t(k)];
                if (buffer < 0) continue;
                char* const gathered = registers + buffer * register_bytes_;
                leaf.gather(begin, n, gathered);
                in[k] = gathered;
            }
            step.loop(n, place_of(i, begin, registers), size_of(step.out), in, strides);
        }
    }

    char* place_of(size_t i, int64_t begin, char* registers) const {
        const Step& step = loop_.steps_[i];
        if (step.stored >= 0) return stored_[size_t(step.stored)]->bytes() + begin * size_of(step.out);
        return registers + places_[i].buffer * register_bytes_;
    }

    const FusedLoop& loop_;
    std::span<const T> stored_;
    std::vector<Leaf> leaves_;
    std::vector<Place> places_;
    int n_registers_ = 0;
    int64_t register_bytes_ = 1;
};

void FusedLoop::run(std::span<const T> leaves, std::span<const T> stored) const {
    if (stored[0]->device().is_cpu())
        Blocks(*this, leaves, stored).run(0, shape_.product());
    else
        cuda::run_fused(device_program(leaves, stored));
}

std::function<void(int64_t, int64_t)> FusedLoop::ranges(std::span<const T> leaves,
                                                        std::span<const T> stored) const {
    const auto blocks = std::make_shared<const Blocks>(*this, leaves, stored);
    return [blocks](int64_t begin, int64_t end) { blocks->run(begin, end); };
}

bool FusedLoop::may_write_over(int leaf, int stored) const {
    bool written = false;
    for (const Step& step : steps_) {
        const auto reads = [&](const Source& source) { return source.step < 0 && source.leaf == leaf; };
        if (written && std::any_of(step.sources.begin(), step.sources.begin() + step.n, reads)) return false;
        written = written || step.stored == stored;
    }
    return true;
}

cuda::FusedProgram FusedLoop::device_program(std::span<const T> leaves, std::span<const T> stored) const {
    cuda::FusedProgram program{stored[0]->device(), shape_, {leaves.begin(), leaves.end()}, {}};
    for (const Step& step : steps_) {
        cuda::FusedProgram::Step one{step.formula, step.operands, step.out, {}, step.n};
        for (size_t k = 0; k < size_t(step.n); ++k)
            one.sources[k] = step.sources[k].step >= 0 ? step.sources[k].step : -1 - step.sources[k].leaf;
        if (step.stored >= 0) one.stored = stored[size_t(step.stored)].get();
        program.steps.push_back(one);
    }
    return program;
}

}  // namespace accelera::tensora
