#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "tensora/functions.h"
#include "tensora/kernels/lines.h"

/// Images (images, channels, extents...) as windows read them.
namespace accelera::tensora {

/// The tensor as its kernel reads it: contiguous, halves as float32.
inline T prepared(const T& x) { return contiguous(is(x->dtype(), halves) ? cast(x, DType::f32) : x); }

/// Let `fill(tensor, Tag)` make the first output in the type that it is computed in.
template <typename Function>
void fill_output(Call& call, Function&& fill) {
    Tensor& out = *call.out[0];
    if (out.size() == 0) return;
    const T made = is(out.dtype(), halves) ? Tensor::empty(out.shape(), DType::f32) : call.out[0];
    if (made->dtype() == DType::f64)
        fill(made, Tag<double>());
    else
        fill(made, Tag<float>());
    if (made->dtype() != out.dtype()) copy_elements(*made, out);
}

inline void check_types(const Call& call) {
    for (const T& x : call.in)
        if (x->dtype() != call.input().dtype())
            fail(Kind::type, call.op.name, ": types ", name_of(call.input().dtype()), " and ",
                 name_of(x->dtype()), "; convert one with .to()");
}

inline Dims extents(const Dims& shape) { return Dims(shape.begin() + 2, shape.size() - 2); }

inline Dims image_shape(int64_t images, int64_t channels, const Dims& extents) {
    Dims shape{images, channels};
    for (int64_t extent : extents) shape.push_back(extent);
    return shape;
}

/// How the outputs along one axis read the source: output i reads from[t] + i * step for each tap t.
struct Axis {
    std::vector<int64_t> from;
    std::vector<int64_t> tap;  ///< place in the kernel of each
    int64_t step = 1;
    int64_t outs = 0;
    int64_t to = 0, to_step = 1;  ///< output i is written at to + i * to_step
    int64_t extent = 0;           ///< of the source

    // Taps that are a multiple of `step` apart read one row of every step-th element, shifted.
    std::vector<int64_t> base;  ///< first element of each such row
    std::vector<int64_t> row, shift;
    int64_t most_shift = 0;

    void find_rows() {
        row.resize(from.size());
        shift.resize(from.size());
        for (size_t t = 0; t < from.size(); ++t) {
            size_t r = 0;
            while (r < base.size() && (from[t] - base[r]) % step) ++r;
            if (r == base.size()) base.push_back(from[t]);
            base[r] = std::min(base[r], from[t]);
            row[t] = int64_t(r);
        }
        for (size_t t = 0; t < from.size(); ++t) {
            shift[t] = (from[t] - base[size_t(row[t])]) / step;
            most_shift = std::max(most_shift, shift[t]);
        }
    }
    int64_t taps() const { return int64_t(from.size()); }
};

// --- the part of an image that a block of outputs reads --------------------------------------------------

struct Block {
    int64_t depth, row, rows, column, columns;
};

/// For each channel and tap of the first axis, rows of source elements with zeros where there is padding. In
/// it outputs have places in one line: that of output (i, j) of a block is i * width + j, and each tap reads
/// the line from another beginning.
template <typename E>
class Slab {
  public:
    static constexpr int64_t slack = 64;  // read behind the last place, and ignored

    Slab(const Axis (&axes)[3], int64_t channels, int64_t rows, int64_t columns)
        : axes_(axes), channels_(channels) {
        shape(rows, columns);
        scratch_.emplace((channels * channel_size() + slack) * int64_t(sizeof(E)));
        std::fill_n(data() + channels * channel_size(), slack, E(0));
    }
    void shape(int64_t rows, int64_t columns) {
        height_ = rows + axes_[1].most_shift;
        width_ = columns + axes_[2].most_shift;
        // An odd number of cache lines: channels that are a power of two apart would share few places of a
        // cache.
        channel_size_ = (axes_[0].taps() * planes() * plane() / 16 + 1) | 1;
        channel_size_ *= 16;
    }
    E* data() const { return scratch_->template as<E>(); }
    int64_t width() const { return width_; }
    int64_t plane() const { return height_ * width_; }
    int64_t channel_size() const { return channel_size_; }
    static int64_t places(const Block& block, int64_t width) {
        return (block.rows - 1) * width + block.columns;
    }

    /// Where each tap of each channel begins, channels outermost.
    void begins(int64_t* to) const {
        const int64_t across = int64_t(axes_[2].base.size()), down = int64_t(axes_[1].base.size());
        for (int64_t c = 0; c < channels_; ++c)
            for (int64_t d = 0; d < axes_[0].taps(); ++d)
                for (int64_t i = 0; i < axes_[1].taps(); ++i)
                    for (int64_t j = 0; j < axes_[2].taps(); ++j) {
                        const int64_t row = axes_[1].row[size_t(i)], column = axes_[2].row[size_t(j)];
                        const int64_t at = (d * down + row) * across + column;
                        *to++ = c * channel_size_ + at * plane() + axes_[1].shift[size_t(i)] * width_ +
                                axes_[2].shift[size_t(j)];
                    }
    }

    /// `source` is the first channel of the image.
    void fill(const E* source, int64_t channels, const Block& block) const {
        const int64_t size = axes_[0].extent * axes_[1].extent * axes_[2].extent;
        for (int64_t c = 0; c < channels; ++c) {
            E* to = data() + c * channel_size_;
            for (int64_t d = 0; d < axes_[0].taps(); ++d) {
                const int64_t depth = axes_[0].from[size_t(d)] + block.depth * axes_[0].step;
                const bool inside = depth >= 0 && depth < axes_[0].extent;
                const E* const from = source + c * size + depth * axes_[1].extent * axes_[2].extent;
                for (int64_t row : axes_[1].base)
                    for (int64_t column : axes_[2].base) {
                        fill_plane(inside ? from : nullptr, row + block.row * axes_[1].step,
                                   column + block.column * axes_[2].step, to);
                        to += plane();
                    }
            }
        }
    }

  private:
    int64_t planes() const { return int64_t(axes_[1].base.size() * axes_[2].base.size()); }
    void fill_plane(const E* from, int64_t row, int64_t column, E* to) const {
        const Axis &down = axes_[1], &across = axes_[2];
        const auto first_at = [&](int64_t place) {
            return std::clamp<int64_t>((place - column + across.step - 1) / across.step, 0, width_);
        };
        const int64_t first = column < 0 ? first_at(0) : 0;
        const int64_t last = column < across.extent ? std::max(first, first_at(across.extent)) : first;
        for (int64_t i = 0; i < height_; ++i, to += width_) {
            const int64_t at = row + i * down.step;
            if (!from || at < 0 || at >= down.extent) {
                std::fill_n(to, width_, E(0));
                continue;
            }
            const E* const line = from + at * across.extent + column;
            std::fill_n(to, first, E(0));
            if (across.step == 1)
                std::copy(line + first, line + last, to + first);
            else
                for (int64_t j = first; j < last; ++j) to[j] = line[j * across.step];
            std::fill_n(to + last, width_ - last, E(0));
        }
    }

    const Axis (&axes_)[3];
    int64_t channels_;
    int64_t height_, width_, channel_size_;
    std::optional<Scratch> scratch_;
};

/// Blocks of outputs whose slabs stay in the second cache.
struct Blocks {
    int64_t rows, columns, down, across;

    Blocks(const Axis (&axes)[3], int64_t channels, int64_t each) {
        constexpr int64_t most_bytes = 512 * 1024;
        const int64_t lines = int64_t(axes[1].base.size() * axes[2].base.size());
        const int64_t most = most_bytes / std::max<int64_t>(1, each * channels * axes[0].taps() * lines);
        const int64_t height = axes[1].most_shift, width = axes[2].most_shift;
        columns = std::clamp<int64_t>(most / (1 + height) - width, std::min<int64_t>(128, axes[2].outs),
                                      axes[2].outs);
        rows = std::clamp<int64_t>(most / (columns + width) - height, 1, axes[1].outs);
        down = (axes[1].outs + rows - 1) / rows;
        across = (axes[2].outs + columns - 1) / columns;
        rows = (axes[1].outs + down - 1) / down;
        columns = (axes[2].outs + across - 1) / across;
    }
    int64_t count(const Axis (&axes)[3]) const { return axes[0].outs * down * across; }
    Block at(int64_t i, const Axis (&axes)[3]) const {
        const int64_t row = i / across % down * rows, column = i % across * columns;
        return {i / across / down, row, std::min(rows, axes[1].outs - row), column,
                std::min(columns, axes[2].outs - column)};
    }
};

}  // namespace accelera::tensora
