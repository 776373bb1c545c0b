#pragma once

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tensora/base/threads.h"
#include "tensora/functions.h"
#include "tensora/kernels/loops.h"

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
            fail(Kind::dtype, "[", call.op.name, "] types ", name_of(call.input().dtype()), " and ",
                 name_of(x->dtype()), "; convert one with .to()");
}

/// Raise for numbers whose sums and products with extents might overflow.
inline void check_sizes(const char* op, const Windows& windows) {
    constexpr int64_t largest = int64_t(1) << 48;
    for (int i = 0; i < windows.stride.size(); ++i)
        require(
            windows.stride[i] <= largest && windows.dilation[i] <= largest && windows.padding[i] <= largest,
            "[", op, "] stride ", windows.stride.words(), ", dilation ", windows.dilation.words(),
            ", padding ", windows.padding.words(), "; give at most ", largest, " each");
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

    // Taps that are a multiple of `step` apart read one row of every step-th element, shifted. Taps that are
    // further apart than a row is long do not share one: it would be mostly elements that no tap reads.
    std::vector<int64_t> base;  ///< first element of each such row
    std::vector<int64_t> row, shift;
    int64_t most_shift = 0;

    void find_rows() {
        constexpr int64_t shared_length = 4096;
        const int64_t longest = std::max(outs, shared_length);
        row.resize(from.size());
        shift.resize(from.size());
        std::unordered_map<int64_t, size_t> latest;  // row of each residue modulo `step`
        const bool rises = from.empty() || from.front() <= from.back();
        for (size_t k = 0; k < from.size(); ++k) {
            const size_t t = rises ? k : from.size() - 1 - k;
            const auto [place, is_new] = latest.try_emplace((from[t] % step + step) % step, base.size());
            if (is_new || (from[t] - base[place->second]) / step > longest) {
                place->second = base.size();
                base.push_back(from[t]);
            }
            row[t] = int64_t(place->second);
            shift[t] = (from[t] - base[place->second]) / step;
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
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): set before the first use
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
        constexpr int64_t most_bytes = int64_t(512) * 1024;
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

// --- convolution of one image to another -----------------------------------------------------------------

template <typename E>
struct Pass {
    Axis axes[3];
    int64_t images, groups, in_channels, out_channels;
    const E* source;
    const E* weight;  ///< for each group a matrix: outputs, and the taps of all channels
    const E* bias;
    E* out;
    int64_t out_extent[3];

    int64_t taps() const { return axes[0].taps() * axes[1].taps() * axes[2].taps(); }
    int64_t source_size() const { return axes[0].extent * axes[1].extent * axes[2].extent; }
    int64_t out_size() const { return out_extent[0] * out_extent[1] * out_extent[2]; }
};

constexpr int64_t panel = 64;  // places whose sums are made together

/// Sums of a panel go to their outputs; places between the rows of outputs are left out.
template <typename E>
void write_panel(const Pass<E>& pass, const Block& block, int64_t width, int64_t begin, int64_t end,
                 const E* sums, E* out, E bias) {
    const Axis &down = pass.axes[1], &across = pass.axes[2];
    for (int64_t place = begin; place < end;) {
        const int64_t i = place / width, j = place % width;
        const int64_t n = std::min(end - place, std::max<int64_t>(block.columns - j, 0));
        const int64_t depth = pass.axes[0].to + block.depth * pass.axes[0].to_step;
        const int64_t row = down.to + (block.row + i) * down.to_step;
        E* const to = out + (depth * pass.out_extent[1] + row) * pass.out_extent[2] + across.to +
                      (block.column + j) * across.to_step;
        const E* const from = sums + place - begin;
        if (across.to_step == 1)
            for (int64_t k = 0; k < n; ++k) to[k] = from[k] + bias;
        else
            for (int64_t k = 0; k < n; ++k) to[k * across.to_step] = from[k] + bias;
        place += std::max<int64_t>(n, std::min(end - place, width - j));
    }
}

/// One block of one group of an image, some of its output channels.
template <typename E>
class BlockSums {
  public:
    BlockSums(const Pass<E>& pass, const Blocks& blocks, int64_t channels)
        : pass_(pass),
          slab_(pass.axes, pass.in_channels, blocks.rows, blocks.columns),
          begins_((pass.in_channels * pass.taps() + channels) * int64_t(sizeof(int64_t))),
          sums_(channels * panel * int64_t(sizeof(E))) {
        int64_t* const rows = begins_.as<int64_t>() + pass.in_channels * pass.taps();
        for (int64_t i = 0; i < channels; ++i) rows[i] = i * pass.in_channels * pass.taps();
    }

    void run(int64_t group_of_image, const Block& block, int64_t first, int64_t last) {
        const int64_t group = group_of_image % pass_.groups;
        slab_.shape(block.rows, block.columns);
        slab_.begins(begins_.as<int64_t>());
        slab_.fill(pass_.source + group_of_image * pass_.in_channels * pass_.source_size(), pass_.in_channels,
                   block);
        const E* const weight =
            pass_.weight + (group * pass_.out_channels + first) * pass_.in_channels * pass_.taps();
        const int64_t places = slab_.places(block, slab_.width());
        for (int64_t begin = 0; begin < places; begin += panel) {
            const int64_t end = std::min(begin + panel, places);
            sum_panel(weight, last - first, begin, end - begin);
            for (int64_t i = first; i < last; ++i) {
                E* const out = pass_.out + (group_of_image * pass_.out_channels + i) * pass_.out_size();
                write_panel(pass_, block, slab_.width(), begin, end, sums_.as<E>() + (i - first) * panel, out,
                            pass_.bias ? pass_.bias[group * pass_.out_channels + i] : E(0));
            }
        }
    }

  private:
    /// In steps of some channels, whose part of the slab stays in the first cache.
    void sum_panel(const E* weight, int64_t channels, int64_t begin, int64_t n) const {
        const int64_t depth = pass_.in_channels * pass_.taps();
        const int64_t touched = pass_.taps() / std::max<int64_t>(1, pass_.axes[2].taps()) *
                                (n + pass_.axes[2].taps()) * int64_t(sizeof(E));
        const int64_t fitting = int64_t(24) * 1024 / std::max<int64_t>(1, touched) * pass_.taps();
        const int64_t step = std::max<int64_t>({fitting, std::min<int64_t>(depth, 64), 1});
        const int64_t* const begins = begins_.as<int64_t>();
        for (int64_t k = 0; k == 0 || k < depth; k += step)
            window_loops<E>().multiply({channels, n, std::min(step, depth - k), weight + k, begins + depth, 1,
                                        slab_.data() + begin, begins + k, sums_.as<E>(), panel, k > 0});
    }

    const Pass<E>& pass_;
    Slab<E> slab_;
    Scratch begins_;
    Scratch sums_;
};

template <typename E>
void run_pass(const Pass<E>& pass) {
    if (pass.images == 0 || pass.axes[0].outs == 0 || pass.axes[1].outs == 0 || pass.axes[2].outs == 0)
        return;
    const Blocks blocks(pass.axes, pass.in_channels, sizeof(E));
    const int64_t count = blocks.count(pass.axes), slabs = pass.images * pass.groups * count;
    // Where there are few slabs, several threads make the output channels of one.
    const int64_t parts =
        std::clamp<int64_t>(pass.out_channels / 48, 1, (4 * thread_count() - 1) / slabs + 1);
    const int64_t channels = (pass.out_channels + parts - 1) / parts;
    parallel_for(slabs * parts, 1, [&](int64_t begin, int64_t end) {
        BlockSums<E> sums(pass, blocks, channels);
        for (int64_t i = begin; i < end; ++i) {
            const int64_t slab = i / parts, first = std::min(i % parts * channels, pass.out_channels);
            sums.run(slab / count, blocks.at(slab % count, pass.axes), first,
                     std::min(first + channels, pass.out_channels));
        }
    });
}

}  // namespace accelera::tensora
